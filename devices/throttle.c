/* SPDX-License-Identifier: Apache-2.0 */
#include "devices/throttle.h"

/* Also of a device that has been reset or paused meanwhile: that has no use for the kick, or looks at all. */
static void on_timer(struct loop_op *op, int res)
{
	struct throttle *t = container_of(op, struct throttle, timer);

	(void)res;
	pthread_mutex_lock(&t->dev->lock);
	vdev_kick(t->dev, t->queue);
	pthread_mutex_unlock(&t->dev->lock);
}

void throttle_init(struct throttle *t, struct vdev *dev, unsigned queue)
{
	*t = (struct throttle){ .dev = dev, .queue = queue, .timer.done = on_timer };
}

void throttle_set(struct throttle *t, const struct limit *bytes, const struct limit *ops,
                  uint64_t (*now_ns)(void))
{
	const struct limit none = { 0 };
	uint64_t now = now_ns();

	t->now_ns = now_ns;
	bucket_init(&t->bytes, bytes, now);
	bucket_init(&t->ops, ops ? ops : &none, now);
}

bool throttle_may_go(struct throttle *t)
{
	uint64_t now, wait, wait_ops;

	if (!t->bytes.rate && !t->ops.rate && !t->since_ns)
		return true;
	now = t->now_ns();
	wait = bucket_wait(&t->bytes, now);
	wait_ops = bucket_wait(&t->ops, now);
	if (wait < wait_ops)
		wait = wait_ops;
	if (!wait) {
		if (t->since_ns)
			t->stats.waited_ns += now - t->since_ns;
		t->since_ns = 0;
		return true;
	}
	if (!t->since_ns) {
		t->since_ns = now;
		t->stats.waits++;
	}
	if (!t->timer.busy)
		loop_timer(t->dev->host.loop, &t->timer,
		           wait > THROTTLE_MIN_NS ? wait : THROTTLE_MIN_NS);
	return false;
}

void throttle_pay(struct throttle *t, uint32_t bytes)
{
	bucket_pay(&t->bytes, bytes);
	bucket_pay(&t->ops, 1);
}

void throttle_close(struct throttle *t)
{
	if (t->dev->host.loop->open)
		loop_reap(t->dev->host.loop, &t->timer);
}
