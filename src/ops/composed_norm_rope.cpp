#include "ops/composed_norm_rope.h"

namespace mw {
namespace {

void rotate(Stream& stream, TensorView x_THh, const Rotation& by, RopeDirection direction) {
  rope(stream, x_THh, by.cos_Sp, by.sin_Sp, direction, x_THh, by.pairs, by.first_T);
}

}  // namespace

void composed_norm_rope(Stream& stream, TensorView x_THh, TensorView gain, float eps, const Rotation& rotation,
                        TensorView y_THh, TensorView rstd) {
  rms_norm(stream, x_THh, gain, eps, y_THh, rstd);
  rotate(stream, y_THh, rotation, RopeDirection::forward);
}

void composed_norm_rope_apply(Stream& stream, TensorView x_THh, TensorView gain, TensorView rstd,
                              const Rotation& rotation, TensorView y_THh) {
  rms_norm_apply(stream, x_THh, gain, rstd, y_THh);
  rotate(stream, y_THh, rotation, RopeDirection::forward);
}

void composed_norm_rope_backward(Stream& stream, TensorView x_THh, TensorView gain, TensorView rstd,
                                 const Rotation& rotation, TensorView d_THh, TensorView d_gain) {
  rotate(stream, d_THh, rotation, RopeDirection::backward);
  rms_norm_backward(stream, x_THh, gain, rstd, d_THh, {}, d_THh, d_gain);
}

}  // namespace mw
