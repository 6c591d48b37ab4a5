// Lists of numbers and arrays: many numbers at once, without an object for each.
#pragma once

#include "handles.h"

namespace onnx_light::python {

// Appends all values to a list of numbers, if they lie in memory as numbers of a kind that the list
// takes and in its range: in an array of numpy or array.array, a memoryview, bytes, or another
// list. Else false, nothing is changed, and the values want to be looked at one by one, as an
// iterator gives them, which comes to the same results and knows the errors.
bool AppendNumbers(Arena& arena, RepeatedBase& list, const FieldBinding& field, PyObject* values);

// A new array of numpy with the elements: numbers of the field's own type, text as `str` or bytes.
// `dtype` may be null or None.
PyObject* ToArray(ListObject& self, PyObject* dtype);

}  // namespace onnx_light::python
