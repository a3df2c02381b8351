/* SPDX-License-Identifier: MIT */
/* party.h -- a rank's part in a parallel call: what it owns, what it needs of the others' keys, and
 * the transport between them. */
#ifndef LOCI_DISTRIBUTED_RANK_CONTEXT_H
#define LOCI_DISTRIBUTED_RANK_CONTEXT_H

#include "api/api.h"
#include "loci/parallel.h"

static inline int64_t span_length(struct key_span s) { return s.end > s.first ? s.end - s.first : 0; }

/* Something by key that travels: [n[0]][n[1]][keys] rows of `bytes`, as the rank owns it, with
 * strides that count bytes; and where it puts those of all ranks, dense, `room` keys. */
struct keyed {
    const char *own;
    ptrdiff_t n[2], stride[2], row;
    size_t bytes;
    char *gathered;
};
enum { MAX_KEYED = 4 + MAX_TENSORS };    /* keys, values, positions, coordinates, INPUT tensors */

/* What travels together: shares of keys are cut at borders of chunks into packets, and a packet is
 * one message, with one array after the other. */
struct transfer {
    bool everything;                     /* all who have rows need all keys; else those they hold */
    bool by_share;                       /* each share of rows asks for itself */
    const struct required_range *required;            /* who needs keys, and for whom this rank takes them */
    int required_count;
    const struct required_range *mine;
    struct keyed list[MAX_KEYED];
    int n;
    size_t bytes;                        /* by key, of all arrays */
    int64_t measured;                        /* keys that there is room for */
    int tag;                             /* of the first packet */

    char *outbox;                        /* the rank's own packets, one after the other */
    bool packed;                         /* they are there */
    void **sends;                        /* their requests, and how many there are */
    int64_t sending;
    struct slot { char *message; void *request; } *slots;    /* [ahead]: what is received */
};

/* What a rank needs, of all its rows or of those of one share; rows: it has any to compute. */
struct required_range { int rank; struct key_span gathered; bool rows; };

struct rank_ctx {
    const loci_plan *plan;
    loci_call call;                      /* what the rank owns */
    loci_parallel all;
    loci_transport via;
    loci_error *error;                   /* the caller's, or NULL */
    loci_error said;                     /* what is wrong on this rank */

    int64_t rows, keys;                  /* of all ranks */
    const loci_share *key_shares;
    int key_count;
    bool placed;                         /* positions or coordinates are given, so that nobody
                                            knows which keys the rows of others see */
    struct key_span gathered;                    /* the keys that this rank holds, sooner or later */
    bool sums;                           /* a backward pass: sums of chunks go from rank to rank */
    bool broken;                         /* the transport failed */
    int64_t asked;                       /* which request was tested last */
    double waited;
    uint64_t sent, received;
    int64_t outputs;                     /* which of them must be the same everywhere, in bits */

    /* What has to be there before a pass can begin, where keys are streamed; and what comes by
     * chunk then, or is collected. */
    struct transfer before, transfer;

    /* In the workspace. */
    struct required_range *required;                  /* [ranks] */
    struct run *runs;                    /* of the rank's own rows, and how many */
    ptrdiff_t run_count;
    void *inner;                         /* for the pass itself */
    char *state;                         /* of rows, where keys are streamed: slots, see call.h */
    size_t slot;
    struct owned owned;
};

/* ---- Who owns what, and who needs it: share.c */

/* Refuses lists that are not what loci_parallel says; *all: how many rows or keys there are. */
loci_status loci_check_shares(const loci_share *, int count, int ranks, const char *name,
                              int64_t *all, loci_error *e);
/* How many of them a rank owns. */
int64_t loci_owned(const loci_share *, int count, int rank);
/* Keys that a rank holds: all that its rows may see, and its own; from a border of chunks on, as
 * tiles are counted from there. */
struct required_range loci_required_range(const struct rank_ctx *, int rank);
/* Keys that the rows of a share may see: whole chunks. */
struct required_range loci_share_required_range(const struct rank_ctx *, int share);
/* Does the plan sum over all keys from the first one on, seen or not? */
bool loci_from_first(const loci_plan *, int enc);

/* ---- What a call is given, and what ranks must agree in: open.c */

/* Without a transport that can be asked nothing can be agreed on, so these errors are the rank's
 * own. */
loci_status loci_open_transport(struct rank_ctx *, const loci_plan *, const loci_parallel *);
/* From the public call; what is wrong from here on goes to party.said, for all to hear. */
loci_status loci_copy_own_call(struct rank_ctx *, const loci_plan *, const loci_call *);
loci_status loci_check_fields(const struct rank_ctx *);         /* what no such call can have */
/* Is `work` such as the call needs, which is so many bytes?  `tells` is the function that says so;
 * SIZE_MAX: there are too many, or party.said has the reason. */
loci_status loci_check_work(const struct rank_ctx *, const void *work, size_t bytes,
                            const char *tells);
loci_status loci_open_shares(struct rank_ctx *);
/* Agrees, own being the status of this rank so far. */
loci_status loci_agree_on_call(struct rank_ctx *, loci_status own, const void *tables);

/* ---- One word for all ranks: agree.c */

/* A number that must be the same everywhere, or ANY, where this rank takes that of the others;
 * hash: its value tells nobody anything. */
#define ANY INT64_MIN
struct fact { const char *name; int64_t value; bool hash; };
/* Returns what all ranks return: LOCI_OK where none of them has failed and they agree in all facts,
 * which then have that value.  own: the status of this rank, whose sentence is in party.said. */
loci_status loci_agree(struct rank_ctx *, loci_status own, struct fact *, int n);
/* Numbers become the highest of all ranks; false: the transport has failed. */
bool loci_highest(struct rank_ctx *, int64_t *list, int n);
/* A hash goes on with some bytes; 0 is how one begins.  It fits into a fact. */
int64_t loci_hash(int64_t so_far, const void *, size_t bytes);
/* The transport has failed: says so, and returns LOCI_TRANSPORT. */
loci_status loci_break(struct rank_ctx *);

/* ---- Keys on their way: travel.c */

/* The keys of one share in one chunk. */
struct message { int share; int64_t chunk, first, count; };
/* Packets as a rank takes them, newest or oldest first.  GATHERED: each rank begins with other
 * ones, so that not all ask the same owner at the same time. */
enum order { GATHERED, NEWEST_FIRST, OLDEST_FIRST };
struct recv_queue {
    struct transfer *transfer;
    enum order order;
    struct message begun, next;           /* the first that is not asked for, and not taken */
    bool more_begun, more;
    int64_t asked, received;                /* of other ranks' packets */
};
/* Takes memory for all of this out of the workspace; or for cargo that is on its way once more,
 * from the same packets to the same place. */
void loci_carve_transfer(struct rank_ctx *, struct transfer *, struct arena *);
void loci_carve_again(struct rank_ctx *, struct transfer *, const struct transfer *, int tag, struct arena *);
/* Begins to send what others need. */
void loci_send(struct rank_ctx *, struct transfer *);
void loci_begin_recv(struct rank_ctx *, struct recv_queue *, struct transfer *, enum order);
/* Takes the next packet: its keys lie from key number `first` on in what is held.  Nothing happens
 * once the transport is broken. */
void loci_recv_message(struct rank_ctx *, struct recv_queue *, int64_t first);
/* All packets, one after the other. */
void loci_recv_all(struct rank_ctx *, struct transfer *, int64_t first);
/* Ends every request. */
void loci_end_transfer(struct rank_ctx *, struct transfer *);
/* Lets the transport go on with what is on its way. */
void loci_progress(struct rank_ctx *, struct transfer *);

/* Who owns a packet; the first one of all shares, oldest first, and the next one: false, there is
 * none.  How many keys of its owner come before those of a packet. */
int loci_owner(const struct rank_ctx *, const struct message *);
bool loci_first_message(const struct rank_ctx *, struct message *);
bool loci_next_message(const struct rank_ctx *, struct message *);
int64_t loci_keys_before(const struct rank_ctx *, const struct message *);
/* The rank's own keys of a packet, as loci_recv_message() puts them. */
void loci_copy_own(const struct rank_ctx *, const struct transfer *, const struct message *,
                   int64_t first);
/* The keys that a share has in a chunk; false: none. */
bool loci_message_of(const struct rank_ctx *, int share, int64_t chunk, struct message *);
int loci_tag_of(const struct rank_ctx *, int kind, const struct message *);
/* Waits for a request, or tells that the transport is broken. */
void loci_end_request(struct rank_ctx *, void **request);

double loci_seconds(void);               /* from some moment on */

/* Tags tell kinds of messages apart, and packets of a kind; the last kind has no packets. */
enum {
    TAG_BEFORE, TAG_TRANSFER, TAG_SWEEP, TAG_OWN, TAG_BUFFER, TAG_BACK, TAG_OTHERS, TAG_KINDS,
    LOCI_TAGS = 32768 / TAG_KINDS,       /* of each kind; MPI promises no wider ones */
    TAG_ON = TAG_OTHERS * LOCI_TAGS, TAG_TOTALS, TAG_KEY_STATE
};

/* Bytes of the workspace of either pass, 0 where there can be none. */
size_t loci_forward_over_ranks(const loci_plan *, const loci_call *, const loci_parallel *);
size_t loci_backward_over_ranks(const loci_plan *, const loci_call *, const loci_parallel *);

#endif
