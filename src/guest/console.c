#include "guest/console.h"

#include <fcntl.h>
#include <stdarg.h>

#include <sys/reboot.h>

#define PREFIX     "space-init: "
#define LINE_BYTES 256
#define TEXT_BYTES (LINE_BYTES - sizeof(PREFIX))

void console_open(void)
{
    int fd = open("/dev/console", O_RDWR | O_NOCTTY);

    if (fd < 0) {
        return;
    }
    for (int i = 0; i < 3; i++) {
        if (fd != i) {
            (void)dup2(fd, i);
        }
    }
    if (fd > 2) {
        (void)close(fd);
    }
}

/* Writes a line of which n bytes of text are formatted; n as vsnprintf returned it. */
static void put_line(char line[LINE_BYTES], int n)
{
    size_t length = sizeof(PREFIX) - 1;
    ssize_t written;

    if (n > 0) {
        length += (size_t)n < TEXT_BYTES - 1 ? (size_t)n : TEXT_BYTES - 1;
    }
    line[length++] = '\n';
    written = write(STDERR_FILENO, line, length);
    (void)written; /* there is no other place to say it */
}

void console_say(const char *format, ...)
{
    char line[LINE_BYTES] = PREFIX;
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(&line[sizeof(PREFIX) - 1], TEXT_BYTES, format, args);
    va_end(args);
    put_line(line, n);
}

void console_die(const char *format, ...)
{
    char line[LINE_BYTES] = PREFIX;
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(&line[sizeof(PREFIX) - 1], TEXT_BYTES, format, args);
    va_end(args);
    put_line(line, n);
    sync();
    (void)reboot(RB_POWER_OFF);
    (void)reboot(RB_AUTOBOOT);
    for (;;) {
        (void)pause();
    }
}
