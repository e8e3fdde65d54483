/* The text of an API key: `space_` and 32 base-32 characters (160 random bits). */
#pragma once

#include <stdint.h>

#include "api/store_key.h"

#define KEY_TEXT_LENGTH 38
#define KEY_TEXT_SIZE   (KEY_TEXT_LENGTH + 1)

/* 0 or -errno. */
int key_text_make(char out[KEY_TEXT_SIZE]) _must_check_;
bool key_text_is_valid(const char *text);
void key_text_hash(const char *text, uint8_t out[KEY_HASH_SIZE]);
