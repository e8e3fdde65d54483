/* Lists of tokens in header values ("keep-alive, Upgrade"). */
#pragma once

#include <stdbool.h>

/* Whether `token` (any case) is in the comma-separated list. */
bool http_token_is_in(const char *token, const char *list);
