/* SPDX-License-Identifier: Apache-2.0 */
/* A list through its members, in both directions: what is in it can leave it without a search. */
#ifndef API_DAEMON_LIST_H
#define API_DAEMON_LIST_H

#include <stdbool.h>
#include <stddef.h>

/* A member's place, or the list itself. Zeroed: in no list. */
struct node {
	struct node *next, *prev;
};

static inline void list_init(struct node *list)
{
	list->next = list->prev = list;
}

static inline void list_append(struct node *list, struct node *node)
{
	node->prev = list->prev;
	node->next = list;
	list->prev->next = node;
	list->prev = node;
}

/* Idempotent. */
static inline void list_remove(struct node *node)
{
	if (!node->next)
		return;
	node->next->prev = node->prev;
	node->prev->next = node->next;
	node->next = node->prev = NULL;
}

static inline bool list_is_empty(const struct node *list)
{
	return list->next == list;
}

/* The member itself may be removed in the body. */
#define list_each(list, node)                                                             \
	for (struct node *node = (list)->next, *next_##node = node->next; node != (list); \
	     node = next_##node, next_##node = node->next)

#endif
