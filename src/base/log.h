/* Structured log: one line per event on standard error, `time level program event key=value …`.
 *
 * Values from outside are escaped and cut at 512 bytes. Never log a key, a token, an environment
 * value or command output. The sink and the level are the only mutable globals of the product. */
#pragma once

#include "base/cleanup.h"

enum log_level {
    LOG_LEVEL_ERROR,
    LOG_LEVEL_WARNING,
    LOG_LEVEL_INFO,
    LOG_LEVEL_DEBUG
};

/* Sets the program's name and the highest level printed. */
void log_init(const char *program, enum log_level level);
void log_set_level(enum log_level level);
/* -EINVAL for an unknown name ("error", "warning", "info", "debug"). */
int log_level_parse(const char *name, enum log_level *ret_level);

/* `event` is a short constant phrase; `format` gives the `key=value` pairs. Use %s only through
 * LOG_STR for text that came from outside. */
void log_event(enum log_level level, const char *event, const char *format, ...) _printf_(3, 4);

#define LOG_TEXT_SIZE 520
/* Copies text into out with quotes, control bytes escaped; returns out. */
const char *log_quote(const char *text, char out[LOG_TEXT_SIZE]);
#define LOG_STR(text) log_quote((text), (char[LOG_TEXT_SIZE]){0})

#define log_error(event, ...)   log_event(LOG_LEVEL_ERROR, event, __VA_ARGS__)
#define log_warning(event, ...) log_event(LOG_LEVEL_WARNING, event, __VA_ARGS__)
#define log_info(event, ...)    log_event(LOG_LEVEL_INFO, event, __VA_ARGS__)
#define log_debug(event, ...)   log_event(LOG_LEVEL_DEBUG, event, __VA_ARGS__)
