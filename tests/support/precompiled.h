// What most tests include, compiled once for all of them, as base/precompiled.h is.
#pragma once

#include <gtest/gtest.h>

#include "base/precompiled.h"
