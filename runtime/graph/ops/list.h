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
    X(sklinear, linear)                                                                            \
    X(sklinear_down, linear)                                                                       \
    X(sklinear_grad_input, linear_grad_input)                                                      \
    X(sklinear_grad_weight, linear_grad_weight)                                                    \
    X(conv1d, conv2d)                                                                              \
    X(conv2d, conv2d)                                                                              \
    X(conv2d_grad_input, conv2d_grad_input)                                                        \
    X(conv2d_grad_weight, conv2d_grad_weight)                                                      \
    X(skconv2d, linear)                                                                            \
    X(conv_transpose2d, conv2d_grad_input)                                                         \
    X(conv_transpose2d_grad_input, conv2d)                                                         \
    X(conv_transpose2d_grad_weight, conv2d_grad_weight)                                            \
    X(channel_bias, bias)                                                                          \
    X(channel_bias_grad, bias_grad)                                                                \
    X(batchnorm, batchnorm)                                                                        \
    X(batchnorm_stats, batchnorm_stats)                                                            \
    X(batchnorm_running, batchnorm_running)                                                        \
    X(batchnorm_merge, batchnorm_merge)                                                            \
    X(batchnorm_infer, batchnorm_infer)                                                            \
    X(batchnorm_grad_stats, batchnorm_grad_stats)                                                  \
    X(batchnorm_grad_merge, batchnorm_grad_merge)                                                  \
    X(batchnorm_grad_input, batchnorm_grad_input)                                                  \
    X(layernorm, layernorm)                                                                        \
    X(layernorm_grad, layernorm_grad)                                                              \
    X(rmsnorm, layernorm)                                                                          \
    X(rmsnorm_grad, layernorm_grad)                                                                \
    X(groupnorm, groupnorm)                                                                        \
    X(groupnorm_grad, groupnorm_grad)                                                              \
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
    X(fake_quantize_learned, quantize_learned)                                                     \
    X(quantize_weight, quantize_weight)                                                            \
    X(quantize_weight_learned, quantize_learned)                                                   \
    X(quantize_learned_grad, quantize_learned_grad)                                                \
    X(int8_quantize, quantize)                                                                     \
    X(int8_dequantize, dequantize)                                                                 \
    X(avgpool2d_int8, pool_int8)                                                                   \
    X(global_avgpool_int8, pool_int8)                                                              \
    X(concat_int8, concat_int8)                                                                    \
    X(dynamic_quantize, dynamic_quantize)                                                          \
    X(int8_dynamic, dynamic_steps)                                                                 \
    X(int8_rescale, rescale)                                                                       \
    X(conv2d_int8, product_int8)                                                                   \
    X(conv2d_int8_groups, product_int8)                                                            \
    X(linear_int8, product_int8)                                                                   \
    X(relu6, elementwise)                                                                          \
    X(relu6_grad, elementwise)                                                                     \
    X(elu, elementwise)                                                                            \
    X(elu_grad, elementwise)                                                                       \
    X(hardswish, elementwise)                                                                      \
    X(hardswish_grad, elementwise)                                                                 \
    X(hardsigmoid, elementwise)                                                                    \
    X(hardsigmoid_grad, elementwise)                                                               \
    X(softplus, elementwise)                                                                       \
    X(softplus_grad, elementwise)                                                                  \
    X(prelu, prelu)                                                                                \
    X(prelu_grad, prelu_grad)                                                                      \
    X(softmax, softmax)                                                                            \
    X(softmax_grad, softmax_grad)                                                                  \
    X(maxpool1d, maxpool2d)                                                                        \
    X(avgpool1d, avgpool2d)                                                                        \
    X(maxpool2d, maxpool2d)                                                                        \
    X(maxpool2d_grad, maxpool2d_grad)                                                              \
    X(avgpool2d, avgpool2d)                                                                        \
    X(avgpool2d_grad, avgpool2d_grad)                                                              \
    X(global_maxpool, maxpool2d)                                                                   \
    X(global_avgpool, global_avgpool)                                                              \
    X(global_avgpool_grad, global_avgpool_grad)                                                    \
    X(adaptive_avgpool2d, resample)                                                                \
    X(adaptive_avgpool2d_grad, resample)                                                           \
    X(pad, resample)                                                                               \
    X(pad_grad, resample)                                                                          \
    X(upsample, resample)                                                                          \
    X(upsample_grad, resample)                                                                     \
    X(class_token, class_token)                                                                    \
    X(class_token_row, resample)                                                                   \
    X(class_token_grad, resample)                                                                  \
    X(select, take_rows)                                                                           \
    X(select_grad, take_rows_grad)                                                                 \
    X(mean_rows, take_rows)                                                                        \
    X(mean_rows_grad, take_rows_grad)                                                              \
    X(reshape, rearrange)                                                                          \
    X(reshape_grad, rearrange)                                                                     \
    X(permute, rearrange)                                                                          \
    X(permute_grad, rearrange)                                                                     \
    X(flatten, flatten)                                                                            \
    X(flatten_grad, flatten)                                                                       \
    X(dropout, dropout)                                                                            \
    X(dropout_grad, dropout)                                                                       \
    X(drop_path, drop_path)                                                                        \
    X(drop_path_grad, drop_path)                                                                   \
    X(attention, attention)                                                                        \
    X(attention_grad, attention_grad)                                                              \
    X(rotary, rotary)                                                                              \
    X(rotary_grad, rotary_grad)                                                                    \
    X(embedding, embedding)                                                                        \
    X(embedding_grad, embedding_grad)                                                              \
    X(positions, positions)                                                                        \
    X(positions_grad, positions_grad)                                                              \
    X(lstm_layer, recurrent)                                                                       \
    X(lstm_layer_grad, recurrent_grad)                                                             \
    X(gru_layer, recurrent)                                                                        \
    X(gru_layer_grad, recurrent_grad)                                                              \
    X(add, add)                                                                                    \
    X(mul, mul)                                                                                    \
    X(mul_grad_scale, mul_grad_scale)                                                              \
    X(concat, concat)                                                                              \
    X(concat_grad, concat_grad)                                                                    \
    X(cross_entropy, cross_entropy)                                                                \
    X(mse, elementwise_loss)                                                                       \
    X(l1, elementwise_loss)                                                                        \
    X(huber, elementwise_loss)                                                                     \
    X(smooth_l1, elementwise_loss)                                                                 \
    X(bce, elementwise_loss)                                                                       \
    X(focal, elementwise_loss)                                                                     \
    X(soft_loss, soft_loss)                                                                        \
    X(feature_loss, feature_loss)

/* Places in the list. */
typedef enum {
#define X(op, kernel) TR_OP_##op,
    TR_OPS(X)
#undef X
} tr_op_place_of;

#endif
