#include "node/file_error.h"

#include <errno.h>
#include <string.h>

#include "node/sandbox.h"

/* Sentences for what happens often; the rest is as strerror says. */
static const struct {
    int errnum;
    const char *text;
} sentences[] = {
    {ENOENT, "no such file or directory"},
    {EACCES, "permission denied"},
    {EPERM, "this is not permitted"},
    {ENOSPC, "the sandbox's disk is full"},
    {EDQUOT, "the user's quota in the sandbox is used up"},
    {EISDIR, "this is a directory"},
    {ENOTDIR, "a part of the path is not a directory"},
    {EEXIST, "this exists already"},
    {ENOTEMPTY, "the directory is not empty"},
    {ENAMETOOLONG, "the name is too long"},
    {ELOOP, "too many symbolic links"},
    {EROFS, "the filesystem is read-only"},
    {EINVAL, "this is not possible with this kind of file"},
    {ETXTBSY, "the program is running"},
    {EPIPE, "the content ended early"},
    {EXDEV, "from one filesystem to another only files and symbolic links are moved"},
};

static const char *sentence_of(int errnum)
{
    const char *text = strerrordesc_np(errnum);

    for (size_t i = 0; i < sizeof(sentences) / sizeof(sentences[0]); i++) {
        if (sentences[i].errnum == errnum) {
            return sentences[i].text;
        }
    }
    return text != NULL ? text : "the guest gave an unknown error";
}

static enum error_code code_of(int errnum)
{
    switch (errnum) {
    case ENOENT:
        return ERROR_NOT_FOUND;
    case EACCES:
    case EPERM:
        return ERROR_FORBIDDEN;
    case ENOSPC:
    case EDQUOT:
        return ERROR_STORAGE_FULL;
    default:
        return ERROR_CONFLICT;
    }
}

int file_error_set(struct error *err, int errnum, struct span path)
{
    enum error_code code = code_of(errnum);

    return error_set_errno(err, code, code == ERROR_NOT_FOUND ? "file" : NULL, errnum, "%s%s%.*s",
                           sentence_of(errnum), path.n > 0 ? ": " : "",
                           (int)(path.n < 200 ? path.n : 200),
                           path.n > 0 ? (const char *)path.p : "");
}

/* It was not even started. */
static void set_refused(struct error *err, const struct service_end *end, const char *user)
{
    if (end->what == AGENT_WHAT_USER) {
        (void)error_set_code(err, ERROR_INVALID_REQUEST, "user", "the sandbox has no user %.60s",
                             user);
    } else if (end->what == AGENT_WHAT_CWD) {
        (void)file_error_set(err, end->errnum, span_of_str(""));
    } else {
        (void)error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL,
                             "the sandbox has no resources for this now: %s",
                             sentence_of(end->errnum));
    }
}

void file_error_of_end(struct error *err,
                       const struct service_end *end,
                       const struct sandbox *sb,
                       const char *user)
{
    switch (end->kind) {
    case SERVICE_END_ERROR:
        (void)file_error_set(err, end->errnum, end->path);
        return;
    case SERVICE_END_REFUSED:
        set_refused(err, end, user);
        return;
    case SERVICE_END_TIMEOUT:
        (void)error_set_code(err, ERROR_DEADLINE_EXCEEDED, NULL,
                             "the sandbox did not answer in time");
        return;
    case SERVICE_END_DONE:
    case SERVICE_END_CUT:
        break;
    }
    if (sb == NULL || sandbox_info(sb)->state == SANDBOX_STATE_DELETING ||
        sandbox_info(sb)->state == SANDBOX_STATE_DELETED) {
        (void)error_set_code(err, ERROR_CONFLICT, NULL, "the sandbox was deleted");
    } else if (sandbox_is_resting(sb)) {
        (void)error_set_code(err, ERROR_FAILED_PRECONDITION,
                             sandbox_state_name(sandbox_info(sb)->state),
                             "the sandbox was suspended while it was at work");
    } else if (sandbox_info(sb)->state != SANDBOX_STATE_RUNNING) {
        (void)error_set_code(err, ERROR_FAILED_PRECONDITION,
                             sandbox_state_name(sandbox_info(sb)->state),
                             "the sandbox ended while it was at work");
    } else {
        (void)error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL,
                             "the sandbox's agent gave no answer; whether it was done is not "
                             "known");
    }
}
