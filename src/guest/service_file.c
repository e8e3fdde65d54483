/* The services that look at or change names: file-stat, file-make-directory. */
#include <errno.h>
#include <fcntl.h>

#include "guest/service_path.h"

#define DIRECTORY_MODE 0755

int service_file_stat(struct service *s)
{
    const char *path = service_arg(s, 0);
    int r = s->argc == 1 ? path_put_entry_of(s, path) : -EINVAL;

    if (r < 0) {
        return service_fail(s, r, path);
    }
    service_put_done(s, 1, false);
    return 0;
}

int service_file_make_directory(struct service *s)
{
    const char *path = service_arg(s, 0);
    mode_t mode = DIRECTORY_MODE;
    size_t made = 0;
    bool is_new = false;
    int r = 0;

    if (s->argc != 2 || (service_arg(s, 1)[0] != '\0' && service_arg_mode(s, 1, &mode) < 0)) {
        r = -EINVAL;
    }
    if (r == 0) {
        r = path_make(path, mode, &made);
        is_new = r > 0;
    }
    if (r >= 0) {
        r = path_put_entry_of(s, path);
    }
    if (r < 0) {
        return service_fail(s, r, path);
    }
    service_put_done(s, is_new ? 1 : 0, false);
    return 0;
}
