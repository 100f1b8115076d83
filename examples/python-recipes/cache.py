"""A cache without a query per hit: a value is dropped when its channel is notified.

A value is stored only if no event of its channel came since before it was read. A new connection begins without values;
while it is lost, values are read each time.

    cache = Cache(client, read)
    task = asyncio.create_task(cache.follow())
    prices = await cache.get("prices")

read(channel) is a coroutine that reads the value, on the server on which the client listens.
"""

from pg_pinpoint import Changed, Connected, Disconnected, Notification


class Cache:
    def __init__(self, client, read):
        self.subscription = client.subscribe()
        self.read = read
        self.connected = False
        self.values = {}
        self.generations = {}  # of each channel that is heard

    async def get(self, channel):
        if self.connected and channel in self.values:
            return self.values[channel]
        self.subscription.add(channel)  # the first event of a new channel is a Changed
        before = self.generations.get(channel)
        value = await self.read(channel)
        if before is not None and self.generations[channel] is before:
            self.values[channel] = value
        return value

    async def follow(self):
        """Run it as a task. It ends with the client, and raises its error."""
        try:
            async for event in self.subscription:
                match event:
                    case Disconnected():
                        self.connected = False
                    case Connected():
                        for channel in self.generations:
                            self.drop(channel)
                        self.connected = True
                    case Notification(channel):
                        self.drop(channel)
                    case Changed(channels):
                        for channel in channels:
                            self.drop(channel)
        finally:
            self.connected = False

    def drop(self, channel):
        self.generations[channel] = object()
        self.values.pop(channel, None)
