/* Cleanup attributes and ownership hand-over.
 *
 * A local that owns a resource is declared with one of these attributes and a neutral initial
 * value (NULL or -1); TAKE and TAKE_FD move the resource out of it. */
#pragma once

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TAKE(p)                                                                                    \
    ({                                                                                             \
        __auto_type take_value_ = (p);                                                             \
        (p) = NULL;                                                                                \
        take_value_;                                                                               \
    })

#define TAKE_FD(fd)                                                                                \
    ({                                                                                             \
        int take_fd_ = (fd);                                                                       \
        (fd) = -1;                                                                                 \
        take_fd_;                                                                                  \
    })

static inline void cleanup_free(void *p)
{
    free(*(void **)p);
}

static inline void cleanup_close(const int *fd)
{
    if (*fd >= 0) {
        (void)close(*fd);
    }
}

static inline void cleanup_fclose(FILE **f)
{
    if (*f != NULL) {
        (void)fclose(*f);
    }
}

static inline void cleanup_closedir(DIR **d)
{
    if (*d != NULL) {
        (void)closedir(*d);
    }
}

#define _cleanup_(f)       __attribute__((cleanup(f)))
#define _cleanup_free_     _cleanup_(cleanup_free)
#define _cleanup_close_    _cleanup_(cleanup_close)
#define _cleanup_fclose_   _cleanup_(cleanup_fclose)
#define _cleanup_closedir_ _cleanup_(cleanup_closedir)
#define _must_check_       __attribute__((warn_unused_result))
#define _printf_(f, a)     __attribute__((format(printf, f, a)))
