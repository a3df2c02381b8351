/* SPDX-License-Identifier: MIT */
/* rank_context.h -- a rank's part in a parallel call: what it owns, the keys that it needs from
 * other ranks, and the transport. */
#ifndef LOCI_DISTRIBUTED_RANK_CONTEXT_H
#define LOCI_DISTRIBUTED_RANK_CONTEXT_H

#include "platform/clock.h"
#include "api/api.h"
#include "loci/parallel.h"

static inline int64_t span_length(struct key_span s)
{
    return s.end > s.first ? s.end - s.first : 0;
}

/* An array by key that is transferred: [n[0]][n[1]][keys] rows of `bytes` bytes.  `own` are the
 * rank's own keys; strides are in bytes.  `gathered` receives those of all ranks, dense, for as
 * many keys as the transfer's `measured`. */
struct keyed {
    const char *own;
    ptrdiff_t n[2], stride[2], row;
    size_t bytes;
    char *gathered;
};
enum { MAX_KEYED = 4 + MAX_TENSORS }; /* keys, values, positions, coordinates, INPUT tensors */

/* Arrays that are transferred together.  Shares of keys are cut at chunk borders.  Each piece is
 * one message, with one array after the other. */
struct transfer {
    /* All ranks with rows require all keys.  Otherwise they require the keys of their range. */
    bool everything;
    bool by_share; /* each share of rows makes its own requests */
    /* Ranges that require keys, and the one that this rank receives for. */
    const struct required_range *required;
    int required_count;
    const struct required_range *mine;
    struct keyed list[MAX_KEYED];
    int n;
    size_t bytes;     /* per key, of all arrays */
    int64_t measured; /* capacity in keys */
    int tag;          /* of the first message */

    char *outbox; /* the rank's own messages, one after the other */
    bool packed;  /* the outbox is filled */
    void **sends; /* requests of sent messages, and their number */
    int64_t sending;
    struct slot {
        char *message;
        void *request;
    } * slots; /* [ahead]: messages that are received */
};

/* The keys that a rank requires for all its rows, or for those of one share.  rows: there are rows
 * to compute. */
struct required_range {
    int rank;
    struct key_span gathered;
    bool rows;
};

struct rank_ctx {
    const loci_plan *plan;
    loci_call call; /* what the rank owns */
    loci_parallel all;
    loci_transport via;
    loci_error *error; /* the caller's, or NULL */
    loci_error said;   /* the error of this rank */

    int64_t rows, keys; /* of all ranks */
    const loci_share *key_shares;
    int key_count;
    /* Positions or coordinates are given.  So no rank knows which keys the rows of others see. */
    bool placed;
    struct key_span gathered; /* the keys that this rank has or receives */
    bool sums;                /* backward pass: sums of chunks pass from rank to rank */
    bool broken;              /* the transport failed */
    int64_t asked;            /* the request that was tested last */
    double waited;
    uint64_t sent, received;
    int64_t outputs; /* which outputs must have the same bits on all ranks */

    /* If keys are streamed, `before` has what must arrive before a pass can begin, and `transfer`
     * has what arrives chunk by chunk.  Otherwise `transfer` has all keys. */
    struct transfer before, transfer;

    /* In the workspace. */
    struct required_range *required; /* [ranks] */
    struct run *runs;                /* of the rank's own rows, and their number */
    ptrdiff_t run_count;
    void *inner; /* workspace of the pass itself */
    /* State of rows if keys are streamed: slots, see stream.h. */
    char *state;
    size_t slot;
    struct owned owned;
};

/* ---- Ownership and required ranges: layout.c */

/* Refuses lists that do not satisfy loci_parallel.  *all: the number of rows or keys. */
loci_status loci_check_shares(const loci_share *, int count, int ranks, const char *name,
                              int64_t *all, loci_error *e);
/* How many rows or keys a rank owns. */
int64_t loci_owned(const loci_share *, int count, int rank);
/* Keys that a rank requires: all that its rows may see, and its own.  The range starts at a chunk
 * border, because tiles are counted from there. */
struct required_range loci_required_range(const struct rank_ctx *, int rank);
/* Keys that the rows of a share may see: whole chunks. */
struct required_range loci_share_required_range(const struct rank_ctx *, int share);
/* Does the plan sum over all keys from the first one on, visible or not? */
bool loci_from_first(const loci_plan *, int enc);

/* ---- Arguments of a call, and what ranks must agree on: open.c */

/* Ranks cannot agree on anything without a usable transport, so these errors are local to the
 * rank. */
loci_status loci_open_transport(struct rank_ctx *, const loci_plan *, const loci_parallel *);
/* Copies the public call.  Later errors go to rank_ctx.said and are reported to all ranks. */
loci_status loci_copy_own_call(struct rank_ctx *, const loci_plan *, const loci_call *);
loci_status loci_check_fields(const struct rank_ctx *); /* what parallel calls do not support */
/* Checks that `work` suits a call that needs `bytes` bytes.  `tells` is the name of the function
 * that returns that number.  SIZE_MAX: the size overflowed, or rank_ctx.said has the error. */
loci_status loci_check_work(const struct rank_ctx *, const void *work, size_t bytes,
                            const char *tells);
loci_status loci_open_shares(struct rank_ctx *);
/* Agrees with the other ranks.  `own` is the status of this rank so far. */
loci_status loci_agree_on_call(struct rank_ctx *, loci_status own, const void *tables);

/* ---- Agreement of all ranks: agree.c */

/* A number that must be the same on all ranks.  ANY: this rank adopts the number of the others.
 * hash: the value is not shown in errors. */
#define ANY INT64_MIN
struct fact {
    const char *name;
    int64_t value;
    bool hash;
};
/* Returns the same status on all ranks: LOCI_OK if no rank has failed and they agree on all facts,
 * which then have the common values.  `own` is the status of this rank; its error is in
 * rank_ctx.said. */
loci_status loci_agree(struct rank_ctx *, loci_status own, struct fact *, int n);
/* Replaces numbers by the maximum over all ranks.  Returns false if the transport has failed. */
bool loci_highest(struct rank_ctx *, int64_t *list, int n);
/* Continues a hash with some bytes.  The initial value is 0.  The result fits into a fact. */
int64_t loci_hash(int64_t so_far, const void *, size_t bytes);
/* The transport has failed: sets the error and returns LOCI_TRANSPORT. */
loci_status loci_break(struct rank_ctx *);

/* ---- Transfer of keys: transfer.c */

/* The keys of one share in one chunk. */
struct message {
    int share;
    int64_t chunk, first, count;
};
/* The order in which a rank receives messages.  GATHERED: each rank starts at a different message,
 * so that ranks do not all ask the same owner at once. */
enum order { GATHERED, NEWEST_FIRST, OLDEST_FIRST };
struct recv_queue {
    struct transfer *transfer;
    enum order order;
    /* The first message that is not requested, and not received. */
    struct message begun, next;
    bool more_begun, more;
    int64_t asked, received; /* number of other ranks' messages */
};
/* Carves a transfer out of the workspace.  loci_carve_again() does so for a second transfer of the
 * same messages to the same place. */
void loci_carve_transfer(struct rank_ctx *, struct transfer *, struct arena *);
void loci_carve_again(struct rank_ctx *, struct transfer *, const struct transfer *, int tag,
                      struct arena *);
/* Starts sending what other ranks require. */
void loci_send(struct rank_ctx *, struct transfer *);
void loci_begin_recv(struct rank_ctx *, struct recv_queue *, struct transfer *, enum order);
/* Receives the next message.  Key number `first` is at the start of the gathered arrays.  Does
 * nothing if the transport is broken. */
void loci_recv_message(struct rank_ctx *, struct recv_queue *, int64_t first);
/* Receives all messages, one after the other. */
void loci_recv_all(struct rank_ctx *, struct transfer *, int64_t first);
/* Completes every request. */
void loci_end_transfer(struct rank_ctx *, struct transfer *);
/* Lets the transport make progress on open requests. */
void loci_progress(struct rank_ctx *, struct transfer *);

/* loci_owner(): the owner of a message.  loci_first_message() and loci_next_message() walk over all
 * shares, oldest first, and return false after the last message.  loci_keys_before(): how many keys
 * of its owner precede those of a message. */
int loci_owner(const struct rank_ctx *, const struct message *);
bool loci_first_message(const struct rank_ctx *, struct message *);
bool loci_next_message(const struct rank_ctx *, struct message *);
int64_t loci_keys_before(const struct rank_ctx *, const struct message *);
/* Copies the rank's own keys of a message to where loci_recv_message() would put them. */
void loci_copy_own(const struct rank_ctx *, const struct transfer *, const struct message *,
                   int64_t first);
/* The message with the keys that a share has in a chunk.  Returns false if there are none. */
bool loci_message_of(const struct rank_ctx *, int share, int64_t chunk, struct message *);
int loci_tag_of(const struct rank_ctx *, int kind, const struct message *);
/* Waits for a request.  On failure the transport is broken. */
void loci_end_request(struct rank_ctx *, void **request);

/* Tags distinguish kinds of messages, and messages of a kind.  The last kind has only single
 * messages. */
enum {
    TAG_BEFORE,
    TAG_TRANSFER,
    TAG_SWEEP,
    TAG_OWN,
    TAG_BUFFER,
    TAG_BACK,
    TAG_OTHERS,
    TAG_KINDS,
    LOCI_TAGS = 32768 / TAG_KINDS, /* of each kind; MPI guarantees no larger ones */
    TAG_ON = TAG_OTHERS * LOCI_TAGS,
    TAG_TOTALS,
    TAG_KEY_STATE
};

/* Workspace in bytes of each pass, 0 if the call or the shares are invalid. */
size_t loci_forward_over_ranks(const loci_plan *, const loci_call *, const loci_parallel *);
size_t loci_backward_over_ranks(const loci_plan *, const loci_call *, const loci_parallel *);

#endif
