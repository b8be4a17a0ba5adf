"""A strategy and plain decoding behind one server, in turns: tokens a second at several concurrencies, T = 0.

`specdec serve STRATEGY --with-plain --port 8000` first; this is the client. Exits with 1 where the strategy is not faster.
"""

import argparse
import asyncio
import statistics
import sys
import time

import httpx2
from serving import prompts_of


async def rate(session, model, prompts, tokens, concurrency):
    """Tokens a second of all answers, so many at a time."""
    waiting = list(prompts)

    async def work():
        count = 0
        while waiting:
            messages = [{"role": "user", "content": waiting.pop()}]
            body = {"model": model, "messages": messages, "max_tokens": tokens, "temperature": 0}
            answer = await session.post("/v1/chat/completions", json=body)
            count += answer.json()["usage"]["completion_tokens"]
        return count

    began = time.perf_counter()
    counts = await asyncio.gather(*(work() for _ in range(concurrency)))
    return sum(counts) / (time.perf_counter() - began)


async def measured(args):
    """By concurrency, the ratios of the rounds."""
    prompts, ratios = prompts_of(args.prompts, args.count), {}
    async with httpx2.AsyncClient(base_url=args.url, timeout=600) as session:
        names = [card["id"] for card in (await session.get("/v1/models")).json()["data"]]
        await rate(session, names[0], prompts[:2], 8, 1)
        for concurrency in args.concurrency:
            for _ in range(args.rounds):
                own, plain = [await rate(session, name, prompts, args.tokens, concurrency) for name in (names[0], "plain")]
                ratios.setdefault(concurrency, []).append(own / plain)
                print(f"{concurrency} at a time: {names[0]} {own:.1f} tokens/s, plain {plain:.1f}, {own / plain:.2f} times")
    return ratios


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4])
    medians = {many: statistics.median(found) for many, found in asyncio.run(measured(parser.parse_args())).items()}
    print(", ".join(f"{many} at a time: {ratio:.2f} times plain (median)" for many, ratio in medians.items()))
    sys.exit(min(medians.values()) <= 1)


if __name__ == "__main__":
    main()
