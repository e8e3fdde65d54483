#include "cli/guest_check.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>
#include <openssl/evp.h>

#include "base/buf.h"
#include "base/fd.h"
#include "cli/cli.h"
#include "cli/installation.h"
#include "cli/rest.h"

#define INIT_MAX    (64U * 1024U * 1024U)
#define RECORD_MAX  65536U
#define SHA256_SIZE 32U

static int hash_file(const char *path, char out[2 * SHA256_SIZE + 1])
{
    _cleanup_buf_ struct buf content = buf_make(INIT_MAX);
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned int n = 0;
    int r = file_read(AT_FDCWD, path, INIT_MAX, &content);

    if (r < 0) {
        return r;
    }
    if (EVP_Digest(content.p, content.n, sum, &n, EVP_sha256(), NULL) != 1 || n != SHA256_SIZE) {
        return -ENOMEM;
    }
    for (unsigned int i = 0; i < n; i++) {
        (void)snprintf(&out[2 * (size_t)i], 3, "%02x", sum[i]);
    }
    return 0;
}

enum guest_check guest_check(const struct cli *cli)
{
    _cleanup_buf_ struct buf text = buf_make(RECORD_MAX);
    _cleanup_json_ json_t *record = NULL;
    char path[INSTALLATION_PATH_SIZE + 64];
    char sum[2 * SHA256_SIZE + 1];
    const char *of;

    (void)snprintf(path, sizeof(path), "%s/guest/guest.json", cli->settings.data_dir);
    if (file_read(AT_FDCWD, path, RECORD_MAX, &text) < 0) {
        return GUEST_CHECK_MISSING;
    }
    record = json_loadb((const char *)text.p, text.n, 0, NULL);
    of = json_string_value(json_object_get(record, "init_sha256"));
    if (of == NULL) {
        return GUEST_CHECK_MISSING;
    }
    installation_program(cli, "space-init", path);
    /* Nothing to compare with is nothing to build from either. */
    return hash_file(path, sum) < 0 || strcmp(sum, of) == 0 ? GUEST_CHECK_CURRENT
                                                            : GUEST_CHECK_STALE;
}
