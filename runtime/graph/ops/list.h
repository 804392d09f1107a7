/* The one list of ops: the registry, both backends and the tests go by it.
 *
 * X(op, kernel): tr_def_OP in this folder says what the op is; tr_cpu_KERNEL and tr_cuda_KERNEL
 * prepare it. A layer stands before its backward ops; layers are in the order of the reference
 * page. */
#ifndef TR_GRAPH_LIST_H
#define TR_GRAPH_LIST_H

#define TR_OPS(X)                                                                                  \
    X(linear, linear)                                                                              \
    X(linear_grad_input, linear_grad_input)                                                        \
    X(linear_grad_weight, linear_grad_weight)                                                      \
    X(conv2d, conv2d)                                                                              \
    X(conv2d_grad_input, conv2d_grad_input)                                                        \
    X(conv2d_grad_weight, conv2d_grad_weight)                                                      \
    X(batchnorm, batchnorm)                                                                        \
    X(batchnorm_stats, batchnorm_stats)                                                            \
    X(batchnorm_merge, batchnorm_merge)                                                            \
    X(batchnorm_infer, batchnorm_infer)                                                            \
    X(batchnorm_grad_stats, batchnorm_grad_stats)                                                  \
    X(batchnorm_grad_merge, batchnorm_grad_merge)                                                  \
    X(batchnorm_grad_input, batchnorm_grad_input)                                                  \
    X(layernorm, layernorm)                                                                        \
    X(layernorm_grad, layernorm_grad)                                                              \
    X(relu, activation)                                                                            \
    X(relu_grad, activation_grad)                                                                  \
    X(gelu, activation)                                                                            \
    X(gelu_grad, activation_grad)                                                                  \
    X(silu, activation)                                                                            \
    X(silu_grad, activation_grad)                                                                  \
    X(sigmoid, activation)                                                                         \
    X(sigmoid_grad, activation_grad)                                                               \
    X(tanh, activation)                                                                            \
    X(tanh_grad, activation_grad)                                                                  \
    X(leaky_relu, elementwise)                                                                     \
    X(leaky_relu_grad, elementwise)                                                                \
    X(fake_quantize, elementwise)                                                                  \
    X(fake_quantize_grad, elementwise)                                                             \
    X(quantize_weight, quantize_weight)                                                            \
    X(int8_quantize, quantize)                                                                     \
    X(int8_dequantize, dequantize)                                                                 \
    X(conv2d_int8, product_int8)                                                                   \
    X(linear_int8, product_int8)                                                                   \
    X(relu6, elementwise)                                                                          \
    X(relu6_grad, elementwise)                                                                     \
    X(softmax, softmax)                                                                            \
    X(softmax_grad, softmax_grad)                                                                  \
    X(maxpool2d, maxpool2d)                                                                        \
    X(maxpool2d_grad, maxpool2d_grad)                                                              \
    X(avgpool2d, avgpool2d)                                                                        \
    X(avgpool2d_grad, avgpool2d_grad)                                                              \
    X(global_avgpool, global_avgpool)                                                              \
    X(global_avgpool_grad, global_avgpool_grad)                                                    \
    X(flatten, flatten)                                                                            \
    X(flatten_grad, flatten)                                                                       \
    X(dropout, dropout)                                                                            \
    X(dropout_grad, dropout)                                                                       \
    X(embedding, embedding)                                                                        \
    X(embedding_grad, embedding_grad)                                                              \
    X(add, add)                                                                                    \
    X(mul, mul)                                                                                    \
    X(mul_grad_scale, mul_grad_scale)                                                              \
    X(concat, concat)                                                                              \
    X(concat_grad, concat_grad)                                                                    \
    X(cross_entropy, cross_entropy)                                                                \
    X(mse, mse)                                                                                    \
    X(bce, bce)                                                                                    \
    X(soft_loss, soft_loss)                                                                        \
    X(feature_loss, feature_loss)

/* Places in the list. */
typedef enum {
#define X(op, kernel) TR_OP_##op,
    TR_OPS(X)
#undef X
} tr_op_place_of;

#endif
