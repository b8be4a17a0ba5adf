"""Server: CPU time outside the decode thread, by request and by chunk; the decode thread's beside `generate` on the same queue.

The client runs in a process of its own. Both ways answer the same prompts with the same seeds in turns, in float32, and the
texts must be equal.
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import threading
import time
from pathlib import Path

import uvicorn

import specdec
from specdec.serving.application import application
from specdec.serving.guard import Access
from specdec.serving.kv_memory import slots
from specdec.serving.limits import ServerLimits
from specdec.serving.running import Address, Server, listening, settle
from specdec.serving.service import Service

MS_A_REQUEST, MS_A_CHUNK, DECODE_RATIO = 2.0, 0.1, 1.03


def prompts_of(path, count):
    """First turns of a JSON-lines file."""
    lines = [json.loads(line) for line in Path(path).read_text().splitlines() if line.strip()]
    return [line["turns"][0] for line in lines][:count]


def client(url, prompts, tokens, temperature, streams, pipe):
    """Ask everything at once, and send back the texts and how many chunks there were."""
    import httpx2

    async def ask(session, number, prompt):
        messages = [{"role": "user", "content": prompt}]
        body = {"messages": messages, "max_tokens": tokens, "seed": number, "temperature": temperature}
        if not streams:
            answer = await session.post("/v1/chat/completions", json=body)
            return answer.json()["choices"][0]["message"]["content"], 1
        text, chunks = "", 0
        async with session.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["delta"]["content"]
                    chunks += 1
        return text, chunks

    async def everything(asked):
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(base_url=url, timeout=600, limits=limits) as session:
            return await asyncio.gather(*(ask(session, number, prompt) for number, prompt in enumerate(asked)))

    asyncio.run(everything(["warm"] * 2))
    pipe.send("ready")
    pipe.recv()
    pipe.send(asyncio.run(everything(prompts)))


def served(decoder, prompts, args, *, streams):
    """Texts, chunks, seconds of the decode thread, and of the process outside of it."""
    limits = ServerLimits(max_running=args.batch, max_waiting=10_000)
    service = Service({"model": decoder}, limits, slots([decoder], None))
    server = Server(uvicorn.Config(application(service, Access()), log_level="critical"), service)
    with listening(Address(port=0)) as place:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[place])))
        thread.start()
        while not server.started:
            time.sleep(0.01)
        mine, theirs = multiprocessing.Pipe()
        url = f"http://127.0.0.1:{place.getsockname()[1]}"
        asking = multiprocessing.get_context("spawn").Process(
            target=client, args=(url, prompts, args.tokens, args.temperature, streams, theirs)
        )
        asking.start()
        mine.recv()
        before, decoded = time.process_time(), service.engine.seconds
        mine.send("go")
        answers = mine.recv()
        time.sleep(0.1)
        decode = service.engine.seconds - decoded
        outside = time.process_time() - before - decode
        asking.join()
        server.end()
        thread.join()
    return [text for text, _ in answers], sum(chunks for _, chunks in answers), decode, outside


def generated(decoder, prompts, args):
    """Texts and thread seconds of `generate` on the same queue."""
    requests = [
        specdec.Request(
            [{"role": "user", "content": prompt}],
            max_new_tokens=args.tokens,
            seed=number,
            sampling={"temperature": args.temperature},
            control_tokens="escape",
        )
        for number, prompt in enumerate(prompts)
    ]
    before = time.thread_time()
    answers = decoder.generate(requests, batch_size=args.batch)
    return [answer.text for answer in answers], time.thread_time() - before


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", default="ngram-tree")
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=0.0)
    args = parser.parse_args()
    prompts = prompts_of(args.prompts, args.count)
    decoder = specdec.load(args.strategy, set={"target.dtype": "float32"})
    generated(decoder, prompts[:2], args)
    settle()
    ratios, whole, chunked, differ = [], [], [], 0
    for _ in range(args.rounds):
        mine, seconds = generated(decoder, prompts, args)
        texts, _, decode, outside = served(decoder, prompts, args, streams=False)
        ratios.append(decode / seconds)
        whole.append(1000 * outside / len(prompts))
        differ += sum(a != b for a, b in zip(mine, texts, strict=True))
        texts, chunks, decode, outside = served(decoder, prompts, args, streams=True)
        ratios.append(decode / seconds)
        chunked.append((1000 * outside, chunks))
        differ += sum(a != b for a, b in zip(mine, texts, strict=True))
        print(f"generate {seconds:.2f} s; decode thread {ratios[-2]:.3f}, streaming {ratios[-1]:.3f} of it; ", end="")
        print(f"outside {whole[-1]:.2f} ms a request, streaming {1000 * outside:.1f} ms for {len(prompts)} and {chunks} chunks")
    request = statistics.median(whole)
    allowed = [len(prompts) * MS_A_REQUEST + chunks * MS_A_CHUNK for _, chunks in chunked]
    stream = statistics.median(spent / most for (spent, _), most in zip(chunked, allowed, strict=True))
    ratio = statistics.median(ratios)
    print(f"outside the decode thread: {request:.2f} ms a request (at most {MS_A_REQUEST}); streams {stream:.2f} of the bar")
    print(f"decode thread against generate: {ratio:.3f} (at most {DECODE_RATIO}); {differ} texts differ")
    sys.exit(request > MS_A_REQUEST or stream > 1 or ratio > DECODE_RATIO or differ > 0)


if __name__ == "__main__":
    main()
