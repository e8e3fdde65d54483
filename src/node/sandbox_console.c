/* The guest's console: what the VMM still holds, joined with what was read before (`console` in
 * the sandbox's directory, at most 64 KiB). */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/fd.h"
#include "base/log.h"
#include "io/loop.h"
#include "node/node.h"
#include "node/sandbox_private.h"
#include "node/vm.h"

#define CONSOLE_FILE  "console"
#define CONSOLE_BYTES 65536U

struct console_read {
    struct sandbox *sb;
    char id[ID_SIZE];
    struct node *node;
    sandbox_console_fn fn;
    void *arg;
};

void sandbox_save_console(struct sandbox *sb)
{
    const struct buf *text = sb->vm != NULL ? vm_console(sb->vm) : NULL;

    if (text != NULL && text->n > 0 && sb->dir_fd >= 0 &&
        file_write_atomic(sb->dir_fd, CONSOLE_FILE, buf_span(text), 0600, false) < 0) {
        log_warning("console_not_kept", "sandbox=%s", sb->info.id);
    }
}

void sandbox_seed_console(struct sandbox *sb)
{
    _cleanup_buf_ struct buf text = buf_make(CONSOLE_BYTES);

    if (file_read(sb->dir_fd, CONSOLE_FILE, CONSOLE_BYTES, &text) == 0) {
        vm_seed_console(sb->vm, buf_span(&text));
    }
}

static void answer_file(void *arg)
{
    struct console_read *c = arg;
    struct sandbox *sb = sandbox_find(c->node, c->id);
    _cleanup_buf_ struct buf text = buf_make(CONSOLE_BYTES);
    struct error err = {0};

    if (sb == NULL) {
        (void)error_set_code(&err, ERROR_NOT_FOUND, "sandbox", "no sandbox %s", c->id);
        c->fn(c->arg, NULL, &err);
    } else {
        if (file_read(sb->dir_fd, CONSOLE_FILE, CONSOLE_BYTES, &text) < 0) {
            buf_clear(&text); /* nothing was read yet */
        }
        c->fn(c->arg, &text, NULL);
    }
    free(c);
}

static void on_read(void *arg, struct vm *vm)
{
    struct console_read *c = arg;
    struct sandbox *sb = sandbox_find(c->node, c->id);

    if (sb != NULL && sb->vm == vm) {
        sandbox_save_console(sb);
    }
    answer_file(c);
}

int sandbox_read_console(struct sandbox *sb, sandbox_console_fn fn, void *arg)
{
    struct console_read *c = calloc(1, sizeof(*c));

    if (c == NULL) {
        return -ENOMEM;
    }
    c->node = sb->node;
    memcpy(c->id, sb->info.id, sizeof(c->id));
    c->fn = fn;
    c->arg = arg;
    if (sb->vm != NULL && (sb->info.state == SANDBOX_STATE_RUNNING || sandbox_is_resting(sb))) {
        vm_read_console(sb->vm, on_read, c);
        return 0;
    }
    if (loop_defer(sb->node->loop, answer_file, c) < 0) {
        free(c);
        return -ENOMEM;
    }
    return 0;
}
