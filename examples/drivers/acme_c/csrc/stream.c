/* A stream is a thread with a task queue. An event counts its records, and the records reached. */
#include "acme.h"

#include <stdlib.h>
#include <string.h>

#define MESSAGE_BYTES 256

struct NNAdapterStream {
    NNAdapterDevice *device;
    NNAdapterStream *next; /* in the device's list */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    acme_task *first, *last;
    uint64_t pending; /* unfinished tasks */
    bool ending;
    NNAdapterStatus failure; /* first failure since the last synchronization */
    char message[MESSAGE_BYTES];
};

struct NNAdapterEvent {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t recorded, reached;
    NNAdapterStatus failure; /* failure of the stream at the last record reached */
    char message[MESSAGE_BYTES];
};

static acme_task *next_task(NNAdapterStream *stream) {
    pthread_mutex_lock(&stream->lock);
    while (!stream->first && !stream->ending) pthread_cond_wait(&stream->changed, &stream->lock);
    acme_task *task = stream->first;
    if (task) stream->first = task->next;
    if (!stream->first) stream->last = NULL;
    pthread_mutex_unlock(&stream->lock);
    return task;
}

static void *work(void *argument) {
    NNAdapterStream *stream = argument;
    for (acme_task *task = next_task(stream); task; task = next_task(stream)) {
        char message[MESSAGE_BYTES] = "";
        NNAdapterError error = {ACME_HEAD(NNAdapterError), .message = message, .capacity = MESSAGE_BYTES};
        NNAdapterStatus status = task->run(task, &error);
        free(task);
        pthread_mutex_lock(&stream->lock);
        if (status && !stream->failure) {
            stream->failure = status;
            memcpy(stream->message, message, MESSAGE_BYTES);
        }
        stream->pending--;
        pthread_cond_broadcast(&stream->changed);
        pthread_mutex_unlock(&stream->lock);
    }
    return NULL;
}

void acme_submit(NNAdapterStream *stream, acme_task *task) {
    task->next = NULL;
    pthread_mutex_lock(&stream->lock);
    if (stream->last)
        stream->last->next = task;
    else
        stream->first = task;
    stream->last = task;
    stream->pending++;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

static NNAdapterStatus create_stream(NNAdapterDevice *device, NNAdapterStream **stream, NNAdapterError *error) {
    NNAdapterStream *new_stream = calloc(1, sizeof *new_stream);
    if (!new_stream) return acme_fail(error, NNADAPTER_OUT_OF_MEMORY, "the host has no memory left for a stream");
    new_stream->device = device;
    pthread_mutex_init(&new_stream->lock, NULL);
    pthread_cond_init(&new_stream->changed, NULL);
    if (pthread_create(&new_stream->thread, NULL, work, new_stream)) {
        pthread_cond_destroy(&new_stream->changed);
        pthread_mutex_destroy(&new_stream->lock);
        free(new_stream);
        return acme_fail(error, NNADAPTER_OUT_OF_MEMORY, "the host gives no more threads; close executions");
    }
    pthread_mutex_lock(&device->lock);
    new_stream->next = device->streams;
    device->streams = new_stream;
    pthread_mutex_unlock(&device->lock);
    *stream = new_stream;
    return NNADAPTER_OK;
}

static void destroy_stream(NNAdapterStream *stream) {
    pthread_mutex_lock(&stream->device->lock);
    NNAdapterStream **link = &stream->device->streams;
    while (*link != stream) link = &(*link)->next;
    *link = stream->next;
    pthread_mutex_unlock(&stream->device->lock);
    pthread_mutex_lock(&stream->lock);
    stream->ending = true;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    pthread_join(stream->thread, NULL);
    pthread_cond_destroy(&stream->changed);
    pthread_mutex_destroy(&stream->lock);
    free(stream);
}

static NNAdapterStatus synchronize_stream(NNAdapterStream *stream, NNAdapterError *error) {
    pthread_mutex_lock(&stream->lock);
    while (stream->pending) pthread_cond_wait(&stream->changed, &stream->lock);
    NNAdapterStatus status = stream->failure;
    if (status) acme_fail(error, status, "%s", stream->message);
    stream->failure = NNADAPTER_OK;
    pthread_mutex_unlock(&stream->lock);
    return status;
}

static NNAdapterStatus synchronize_device(NNAdapterDevice *device, NNAdapterError *error) {
    NNAdapterStatus status = NNADAPTER_OK;
    pthread_mutex_lock(&device->lock);
    for (NNAdapterStream *stream = device->streams; stream; stream = stream->next) {
        NNAdapterStatus stream_status = synchronize_stream(stream, error);
        if (!status) status = stream_status;
    }
    pthread_mutex_unlock(&device->lock);
    return status;
}

static NNAdapterStatus create_event(NNAdapterDevice *device, NNAdapterEvent **event, NNAdapterError *error) {
    (void)device;
    NNAdapterEvent *new_event = calloc(1, sizeof *new_event);
    if (!new_event) return acme_fail(error, NNADAPTER_OUT_OF_MEMORY, "the host has no memory left for an event");
    pthread_mutex_init(&new_event->lock, NULL);
    pthread_cond_init(&new_event->changed, NULL);
    *event = new_event;
    return NNADAPTER_OK;
}

static void destroy_event(NNAdapterEvent *event) {
    pthread_cond_destroy(&event->changed);
    pthread_mutex_destroy(&event->lock);
    free(event);
}

typedef struct mark { /* task that reaches a record, or waits for it */
    acme_task task;
    NNAdapterEvent *event;
    NNAdapterStream *stream;
    uint64_t record;
} mark;

static NNAdapterStatus reach(acme_task *task, NNAdapterError *error) {
    mark *here = (mark *)task;
    NNAdapterEvent *event = here->event;
    NNAdapterStream *stream = here->stream;
    (void)error;
    pthread_mutex_lock(&event->lock);
    if (event->reached < here->record) {
        event->reached = here->record;
        pthread_mutex_lock(&stream->lock);
        event->failure = stream->failure;
        memcpy(event->message, stream->message, MESSAGE_BYTES);
        pthread_mutex_unlock(&stream->lock);
    }
    pthread_cond_broadcast(&event->changed);
    pthread_mutex_unlock(&event->lock);
    return NNADAPTER_OK;
}

static NNAdapterStatus await(acme_task *task, NNAdapterError *error) {
    mark *here = (mark *)task;
    (void)error;
    pthread_mutex_lock(&here->event->lock);
    while (here->event->reached < here->record) pthread_cond_wait(&here->event->changed, &here->event->lock);
    pthread_mutex_unlock(&here->event->lock);
    return NNADAPTER_OK;
}

static NNAdapterStatus submit_mark(NNAdapterStream *stream, NNAdapterEvent *event, bool record, NNAdapterError *error) {
    mark *here = malloc(sizeof *here);
    if (!here) return acme_fail(error, NNADAPTER_OUT_OF_MEMORY, "the host has no memory left for an event");
    pthread_mutex_lock(&event->lock);
    if (record) event->recorded++;
    *here = (mark){.task.run = record ? reach : await, .event = event, .stream = stream, .record = event->recorded};
    pthread_mutex_unlock(&event->lock);
    acme_submit(stream, &here->task);
    return NNADAPTER_OK;
}

static NNAdapterStatus record_event(NNAdapterEvent *event, NNAdapterStream *stream, NNAdapterError *error) {
    return submit_mark(stream, event, true, error);
}

static NNAdapterStatus wait_event(NNAdapterStream *stream, NNAdapterEvent *event, NNAdapterError *error) {
    return submit_mark(stream, event, false, error);
}

static NNAdapterStatus synchronize_event(NNAdapterEvent *event, NNAdapterError *error) {
    pthread_mutex_lock(&event->lock);
    uint64_t record = event->recorded;
    while (event->reached < record) pthread_cond_wait(&event->changed, &event->lock);
    NNAdapterStatus status = event->failure;
    if (status) acme_fail(error, status, "%s", event->message);
    pthread_mutex_unlock(&event->lock);
    return status;
}

static int32_t query_event(NNAdapterEvent *event) {
    pthread_mutex_lock(&event->lock);
    int32_t is_done = event->reached == event->recorded;
    pthread_mutex_unlock(&event->lock);
    return is_done;
}

const NNAdapterStreamFunctions acme_stream_functions = {
    ACME_HEAD(NNAdapterStreamFunctions),
    .create_stream = create_stream,
    .destroy_stream = destroy_stream,
    .create_event = create_event,
    .destroy_event = destroy_event,
    .record_event = record_event,
    .wait_event = wait_event,
    .synchronize_stream = synchronize_stream,
    .synchronize_device = synchronize_device,
    .synchronize_event = synchronize_event,
    .query_event = query_event,
};
