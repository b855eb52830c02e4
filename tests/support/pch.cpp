// Holds the precompiled gtest header that every test program shares.
#include <gtest/gtest.h>
