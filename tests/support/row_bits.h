// Whether rows may be moved between products without changing a bit.
#pragma once

namespace mw::test {

// Whether a row of an fp32 product has the same bits however many rows there are. With oneDNN on CPUs without AVX-512
// it has not: the last rows of a product are rounded in another order. Tried once, on small products.
bool rows_have_same_bits();

// The relative error to expect of what is computed with an expert's rows in another number of products: 0, or 1e-6.
inline double row_tolerance() { return rows_have_same_bits() ? 0 : 1e-6; }

}  // namespace mw::test
