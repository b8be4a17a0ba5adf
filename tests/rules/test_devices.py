"""A drafter and a target may be on different devices.

There is one device here, so that others are pretended: tensors carry the device that they claim, every torch function is
watched, and one that mixes two devices raises, as it would on real ones.
"""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from specdec.decoding.requests import Request
from specdec.drafters.model import ModelDrafter, ModelOptions
from specdec.errors import PluginError
from specdec.interfaces.declarations import Features
from specdec.interfaces.parts import BuildTools, PartOptions, Prefilled, Verifier
from specdec.interfaces.results import Scored, Verdict
from specdec.sampling.params import SamplingParams
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.verifiers.multi_round import MultiRound

HOST = torch.device("cpu")
FACTORIES = {torch.tensor, torch.zeros, torch.ones, torch.full, torch.arange, torch.empty, torch.as_tensor}


class DeviceMixed(AssertionError):
    """Two devices met in one operation."""


class Pretend(TorchFunctionMode):
    """Gives tensors the devices that they were made on or moved to, and refuses to mix them."""

    def __init__(self):
        super().__init__()
        self.places = {}

    def put(self, tensor, device):
        """Claim that `tensor` is on `device`; it is kept alive, so that its id stays its own."""
        if torch.device(device) != HOST:
            self.places[id(tensor)] = (tensor, torch.device(device))
        return tensor

    def place(self, tensor):
        return self.places[id(tensor)][1] if id(tensor) in self.places else HOST

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func == torch.Tensor.device.__get__:
            return self.place(args[0])
        if func is torch.Tensor.to:
            return self.moved(args, kwargs)
        if func in FACTORIES:
            device = kwargs.pop("device", None) or HOST
            return self.put(func(*args, **kwargs), device)
        tensors = list(tensors_in((args, kwargs)))
        places = {self.place(tensor) for tensor in tensors if tensor.dim() > 0}
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            places -= {HOST} if self.place(args[0]) != HOST else set()
        if len(places) > 1:
            raise DeviceMixed(f"{func} mixes {', '.join(map(str, places))}")
        device = kwargs.pop("device", None) or next(iter(places), None) or max(map(self.place, tensors), key=str, default=HOST)
        result = func(*args, **kwargs)
        for tensor in tensors_in(result):
            self.put(tensor, device)
        return result

    def moved(self, args, kwargs):
        """`to` with a device, a dtype, both, or another tensor."""
        source, *wanted = args
        target, dtype = self.place(source), kwargs.get("dtype", source.dtype)
        for value in [*wanted, kwargs.get("device")]:
            if isinstance(value, torch.Tensor):
                target, dtype = self.place(value), value.dtype
            elif isinstance(value, torch.dtype):
                dtype = value
            elif isinstance(value, str | torch.device):
                target = torch.device(value)
        return self.put(torch.clone(source) if dtype == source.dtype else source.type(dtype), target)


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


@pytest.fixture
def elsewhere(watched):
    """A target whose logits are on a pretended device."""

    class Elsewhere(watched):
        def __init__(self, inner, pretend, device):
            super().__init__(inner)
            self.pretend, self.device = pretend, device

        @property
        def facts(self):
            return type(self.inner.facts)(**{**_fields(self.inner.facts), "device": torch.device(self.device)})

        def put(self, scored):
            return Scored(self.pretend.put(scored.logits.clone(), self.device), scored.hidden, scored.first_node)

        def prefill(self, prompts, features):
            prefilled = super().prefill(prompts, features)
            return Prefilled(prefilled.state, tuple(map(self.put, prefilled.scored)))

        def score(self, state, trees):
            return [self.put(scored) for scored in super().score(state, trees)]

    return Elsewhere


def _fields(facts):
    return {name: getattr(facts, name) for name in facts.__dataclass_fields__}


EVERYTHING = SamplingParams(
    temperature=0.8, top_k=6, top_p=0.95, min_p=0.01, repetition_penalty=1.2, presence_penalty=0.1, logit_bias={1: 0.5}
)
DEVICES = [("cuda:0", "cuda:1"), ("cuda:0", "cpu"), ("cpu", "cuda:0")]


def keeps_to_itself(inputs, scores):
    """A processor that makes its own tensors where the scores are."""
    return scores + torch.zeros(scores.shape[-1], device=scores.device)


@pytest.mark.parametrize(
    "sampling", [SamplingParams(), SamplingParams(temperature=1.0), EVERYTHING], ids=["greedy", "plain", "everything"]
)
@pytest.mark.parametrize(("target_device", "draft_device"), DEVICES)
def test_no_tensor_meets_one_of_another_device(compose, table, strategy, elsewhere, sampling, target_device, draft_device):
    inner, draft = table(8, seed=1), table(8, seed=2)
    requests = [Request((1, 2), max_new_tokens=8, seed=1, logprobs=2), Request((3,), max_new_tokens=5, seed=2)]
    expected = compose(inner, strategy, model_drafter(inner, draft), sampling=sampling).generate(requests)
    with Pretend() as pretend:
        target = elsewhere(inner, pretend, target_device)
        drafter = model_drafter(target, elsewhere(draft, pretend, draft_device))
        answers = compose(target, strategy, drafter, sampling=sampling).generate(
            requests, processors=[keeps_to_itself] if sampling is EVERYTHING else []
        )
    assert [a.tokens for a in answers] == [e.tokens for e in expected]
    assert pretend.places


def model_drafter(target, draft):
    return ModelDrafter.build(ModelOptions(model={"use": "tabular"}), BuildTools(target=target, targets={"model": draft}))


class Mixes(Verifier):
    """The planted fault: subtracts q from p wherever they are."""

    name = "mixes"
    Options = PartOptions

    @classmethod
    def declares(cls, options):
        return MultiRound.declares(options)

    @classmethod
    def build(cls, options, tools):
        return cls()

    def verify(self, tree, p, rng):
        left = p.row(0).dense(8) - tree.q_of(0)
        return Verdict((), int(left.argmax()), all_accepted=False)


def test_a_verifier_that_mixes_devices_is_seen(compose, table, parts_of, elsewhere):
    parts = parts_of(Sampled, SampledOptions(widths=[2]), Mixes)
    with Pretend() as pretend:
        target = elsewhere(table(8, seed=1), pretend, "cuda:0")
        drafter = model_drafter(target, elsewhere(table(8, seed=2), pretend, "cuda:1"))
        decoder = compose(target, parts, drafter, sampling=SamplingParams(temperature=1.0))
        with pytest.raises(PluginError, match=r"verifier .* fails: DeviceMixed"):
            decoder.generate([[1]], max_new_tokens=5)


def test_the_pretended_devices_do_not_mix():
    with Pretend() as pretend:
        here, there = torch.ones(3, device="cuda:0"), torch.ones(3, device="cuda:1")
        assert (here.device, there.device, (here + 1).device) == (torch.device("cuda:0"), torch.device("cuda:1"), here.device)
        assert (here.to("cuda:1") + there).tolist() == [2, 2, 2]
        for mixed in (lambda: here + there, lambda: here + torch.ones(3), lambda: torch.stack([here, there])):
            with pytest.raises(DeviceMixed):
                mixed()
        assert here[torch.tensor([0, 1])].device == torch.device("cuda:0")
    assert pretend.places


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("draft_device", ["cpu", "cuda"])
def test_a_real_drafter_on_another_device_drafts(compose, tiny, shape, draft_device):
    target, logits_of = tiny("llama", device="cuda")
    draft, _ = tiny("llama", device=draft_device)
    prompt = [5, 6, 7]
    answer = compose(target, shape, model_drafter(target, draft)).generate([prompt], max_new_tokens=10)[0]
    assert len(answer.tokens) == 10
    assert target.prefill([prompt], Features()).scored[0].logits.device.type == "cuda"
    assert int(logits_of(prompt).argmax()) == answer.tokens[0]
