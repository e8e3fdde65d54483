/* Tokens in answers: POST /v1/tokens, and the session of a started command.
 *
 * What an Idempotency-Key keeps of such an answer has null where a token was; each repetition gets
 * tokens of its own, with what its caller may do. */
#pragma once

#include <jansson.h>

#include "base/span.h"

struct request;

/* The session of an answer, without its token. NULL without memory. */
json_t *tokens_session(const struct request *rq, const char *session_id);
/* Answers; `answer` (stolen) has null for the tokens, which are put in here. */
void tokens_answer(struct request *rq, int status, json_t *answer);
/* Answers a repetition with what was kept. */
void tokens_answer_again(struct request *rq, int status, struct span kept);
