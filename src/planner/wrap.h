// Line breaks in reports for people.
#pragma once

#include <string>
#include <string_view>

namespace mw {

// The text with lines of prose broken at spaces, so that none has more than `columns` bytes where a space allows it.
// Later parts of a line are indented two columns more than its first. Rows of tables, which have two spaces in a row
// after their indentation, stay whole.
std::string wrap_prose(std::string_view text, size_t columns = 120);

}  // namespace mw
