/* Checkpoints for tests of the data side alone: there are none, or so many that are listed only,
 * and none can be made. */
#include <errno.h>
#include <stdint.h>

#include <jansson.h>

#include "base/buf.h"
#include "node/checkpoint.h"
#include "node/data_rig.h"
#include "node/sandbox.h"
#include "node/template_make.h"

struct checkpoint *checkpoint_find(struct node *node, const char *id)
{
    (void)node;
    (void)id;
    return NULL;
}

struct checkpoint *checkpoint_next(struct node *node, struct checkpoint_walk *walk)
{
    static const struct checkpoint listed = {.manifest = "m"};

    /* Nobody writes to what is only listed. */
    return walk->seen++ < data_rig_checkpoints(node) ? (struct checkpoint *)(uintptr_t)&listed
                                                     : NULL;
}

struct json_t *checkpoint_describe(const struct checkpoint *ck)
{
    _cleanup_buf_ struct buf name = buf_make(0);

    (void)ck;
    buf_printf(&name, "%65536d", 0);
    return json_pack("{s:s}", "name", buf_str(&name));
}

struct checkpoint *checkpoint_new(struct node *node, const char *id)
{
    (void)node;
    (void)id;
    return NULL;
}

void checkpoint_discard(struct checkpoint *ck)
{
    (void)ck;
}

int checkpoint_wait(struct checkpoint *ck, checkpoint_fn fn, void *arg)
{
    (void)ck;
    (void)fn;
    (void)arg;
    return 0;
}

int checkpoint_remove(struct node *node, const char *id, checkpoint_fn fn, void *arg)
{
    (void)node;
    (void)id;
    fn(arg, NULL, NULL);
    return 0;
}

void checkpoint_cancel_waits(struct node *node, const void *arg)
{
    (void)node;
    (void)arg;
}

int sandbox_checkpoint(struct sandbox *sb, struct checkpoint *ck, bool memory, struct error *err)
{
    (void)sb;
    (void)ck;
    (void)memory;
    return error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL, "not here");
}

int sandbox_rollback(
    struct sandbox *sb, const char *checkpoint_id, sandbox_wait_fn fn, void *arg, struct error *err)
{
    (void)sb;
    (void)checkpoint_id;
    (void)fn;
    (void)arg;
    return error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL, "not here");
}

bool checkpoint_is_image(const struct checkpoint *ck)
{
    (void)ck;
    return false;
}

int template_make(struct node *node,
                  const struct template_order *order,
                  template_fn fn,
                  void *arg,
                  struct error *err)
{
    (void)node;
    (void)order;
    (void)fn;
    (void)arg;
    return error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL, "not here");
}

int template_withdraw(struct node *node,
                      const char *name,
                      const char *version,
                      template_fn fn,
                      void *arg,
                      struct error *err)
{
    (void)node;
    (void)name;
    (void)version;
    (void)fn;
    (void)arg;
    return error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL, "not here");
}

void template_cancel_waits(struct node *node, const void *arg)
{
    (void)node;
    (void)arg;
}

bool template_name_is_valid(const char *text)
{
    return text[0] != '\0';
}

int checkpoint_fetch(struct checkpoint *ck,
                     const char *manifest,
                     const char *template_name,
                     const char *template_version,
                     struct error *err)
{
    (void)ck;
    (void)manifest;
    (void)template_name;
    (void)template_version;
    return error_set(err, ENOSYS, "there are no checkpoints");
}
