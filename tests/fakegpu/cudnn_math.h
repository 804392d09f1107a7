// The arithmetic of the stand-in for cuDNN: convolutions in plain loops, sums in float32 in a fixed
// order, on packed float32 copies with channels innermost. TF32 is not simulated: engines that
// would round float32 operands to TF32 give float32 results here.
#pragma once

#include <cstdint>
#include <vector>

#include <cudnn.h>

#include "tests/fakegpu/cudnn_inside.h"

namespace fakegpu::dnn
{

float rounded(float v, cudnnDataType_t type); // to the type and back; ties to even
// Values of a 4-D tensor (n, c, h, w) in the order n, h, w, c; the memory has the tensor's strides.
std::vector<float> load(const Tensor &t, const void *p);
void store(const Tensor &t, void *p, const std::vector<float> &v);

struct Rules {
    bool reduced;  // sums are rounded to the operands' type at each step
    bool down;     // float32 operands are rounded to bfloat16
    bool jitter;   // last bits vary from run to run
    bool drop_nan; // a maximum with NaN is the other operand
};

// The output of a convolution operation, before alpha and beta; the operands in load's order (a
// filter's: k, r, s, c), sizes from the op's tensors.
std::vector<float> convolve(const Op &op, const std::vector<float> &x, const std::vector<float> &w,
                            const std::vector<float> &y, const Rules &rules);
std::vector<float> pointwise(const Op &op, const std::vector<float> &x, const std::vector<float> &b,
                             const std::vector<float> &t, const Rules &rules);
// cudnn_matrix.cc: products of matrices (rows: h, columns: w) of each n and c, sums and maxima over
// the dimensions that y has fewer of, the same memory with other sizes and strides.
std::vector<float> multiply(const Op &op, const std::vector<float> &a, const std::vector<float> &b);
std::vector<float> reduce(const Op &op, const std::vector<float> &x);
std::vector<float> reshape(const Op &op, const std::vector<float> &x);
bool known_pointwise(cudnnPointwiseMode_t mode);
bool binary_pointwise(cudnnPointwiseMode_t mode);
// Changes last bits differently each time.
void jitter(std::vector<float> &v);

} // namespace fakegpu::dnn
