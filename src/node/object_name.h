/* Names of the files of a snapshot. */
#pragma once

#include <stdbool.h>

#define OBJECT_NAME_SIZE 96

/* NUL-terminated; letters, digits, '.', '_', '-', and one '/' between two of them. No part is
 * hidden. */
bool object_name_is_valid(const char *name);
