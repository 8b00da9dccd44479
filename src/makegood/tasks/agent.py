"""`Agent(...)` and `@agent(...)`: what a run of an agent may use and how long it may take."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, Final, Literal, ParamSpec, TypeVar, cast

from pydantic import BaseModel, ValidationError

from makegood.errors import DeclarationError, InvalidInput, OutputInvalid
from makegood.tasks.checks import check_signature, is_name
from makegood.tasks.policies import (
    BreakerPolicy,
    Budgets,
    OnFailure,
    RetryPolicy,
    Timeouts,
    check_count,
    check_on_failure,
    refuse_unbuilt,
)
from makegood.tasks.rules.names import AGENT_NAME
from makegood.tasks.schema import object_schema, problems
from makegood.tasks.tool import Tool

AgentCode = Callable[[Any, Any], Coroutine[Any, Any, Any]]
T = TypeVar("T")
D = TypeVar("D")
P = ParamSpec("P")
Input = str | dict[str, Any]

# Policies are frozen, so one value of each serves all agents.
_TIMEOUTS: Final = Timeouts()
_BUDGETS: Final = Budgets()
_RETRY: Final = RetryPolicy()
_TOOL_RETRY: Final = RetryPolicy(retries=5, backoff=1, max_backoff=16)
_BREAKER: Final = BreakerPolicy()
_DEFAULT_CLEANUP_S: Final = 60.0  # in the total when cleanup has no limit: `total` always exists (A1)
_FENCED: Final = re.compile(r"\s*```[a-zA-Z]*\s*\n(.*?)\n?\s*```\s*", re.DOTALL)

# What makegood sets on every request itself: one request per try (B5), its own clocks (B6), one retry layer (C1).
_RESERVED: Final = {
    "model": "model=",
    "messages": "system= and the input",
    "tools": "tools=",
    "stream_options": "enqueue(stream=True)",
    "timeout": "timeouts=",
    "stream_timeout": "timeouts=",
    "request_timeout": "timeouts=",
    "num_retries": "retry=",
    "max_retries": "retry=",
    "fallbacks": "fallback_models=",
}


class Agent:
    """A declaration: model, system prompt, tools, limits, policy; a worker finds it through MAKEGOOD_AGENTS.

    It is read-only once made. `on_failure` is "rollback" or "keep" (aliases "rollback_on_fail" and
    "commit_on_complete"); under rollback `write` and `idempotent` tools need a compensation (E10). `model_args` goes to
    the model as it is, `input` and `output` are pydantic models, `prompt(input)` makes the first user message,
    `snapshot(ctx, input)` declares resources before the first step of an attempt, `before_step(ctx)` and
    `before_end(ctx, output)` may cancel. `verify(ctx, run)` says of a run that ends timed_out whether it had in fact
    finished: True, False, or None (A8); it may be asked again after a crash, so asking must be safe to repeat.

    Attributes:
        tools: the tools by name.
        code: the coroutine of an agent made by `@agent(...)`, else None.

    Raises:
        DeclarationError: one sentence that names the field and says what to change.
        NotBuilt: max_running or session_on_review is given.
    """

    code: AgentCode | None = None

    def __init__(
        self,
        name: str,
        model: str,
        *,
        system: str = "",
        tools: Iterable[Tool] = (),
        model_args: Mapping[str, Any] | None = None,
        fallback_models: Iterable[str] = (),
        on_failure: str = "rollback",
        timeouts: Timeouts = _TIMEOUTS,
        budgets: Budgets = _BUDGETS,
        retry: RetryPolicy = _RETRY,
        tool_retry: RetryPolicy = _TOOL_RETRY,
        breaker: BreakerPolicy = _BREAKER,
        max_attempts: int = 3,
        max_running: int | None = None,
        input: type[BaseModel] | None = None,  # noqa: A002  # the name is part of the interface
        prompt: Callable[[Any], str] | None = None,
        output: type[BaseModel] | None = None,
        snapshot: Callable[..., Any] | None = None,
        before_step: Callable[..., Any] | None = None,
        before_end: Callable[..., Any] | None = None,
        verify: Callable[..., Any] | None = None,
        session_on_review: Literal["block", "continue"] = "block",
    ) -> None:
        if not is_name(name, AGENT_NAME):
            raise DeclarationError(
                f"Agent name {str(name)[:80]!r} is not usable; use 1 to 64 of a-z A-Z 0-9 _ . -."
            )
        says = f"Agent {name!r}"
        self.name = name
        self.model = _text(f"{says}: model", model)
        if not isinstance(system, str):
            raise DeclarationError(f"{says}: system must be a text, not {type(system).__name__}.")
        self.system = system
        self.tools: Mapping[str, Tool] = MappingProxyType(_tools(says, tools))
        self.model_args: Mapping[str, Any] = MappingProxyType(_model_args(says, model_args))
        self.fallback_models = _fallbacks(says, fallback_models)
        self.on_failure: OnFailure = check_on_failure(f"{says}: on_failure", on_failure)
        self.timeouts = _policy(says, "timeouts", timeouts, Timeouts)
        self.budgets = _policy(says, "budgets", budgets, Budgets)
        self.retry = _policy(says, "retry", retry, RetryPolicy)
        self.tool_retry = _policy(says, "tool_retry", tool_retry, RetryPolicy)
        self.breaker = _policy(says, "breaker", breaker, BreakerPolicy)
        check_count(f"{says}: max_attempts", max_attempts)
        self.max_attempts = max_attempts
        self.input = _model_class(says, "input", input)
        self.output = _model_class(says, "output", output)
        self.prompt = _hook(says, "prompt", prompt, ("input",))
        self.snapshot = _hook(says, "snapshot", snapshot, ("ctx", "input"))
        self.before_step = _hook(says, "before_step", before_step, ("ctx",))
        self.before_end = _hook(says, "before_end", before_end, ("ctx", "output"))
        self.verify = _hook(says, "verify", verify, ("ctx", "run"))
        refuse_unbuilt(f"{says}: max_running", max_running, None)
        refuse_unbuilt(f"{says}: session_on_review", session_on_review, "block")
        self.input_schema = object_schema(self.input) if self.input else None
        self.output_schema = object_schema(self.output) if self.output else None
        self._check_undo(says)
        self._made = True

    def __setattr__(self, field: str, value: object) -> None:
        if "_made" in self.__dict__:
            raise AttributeError(f"Agent {self.name!r} is read-only; declare {field} when you make it.")
        super().__setattr__(field, value)

    def __repr__(self) -> str:
        return f"<Agent {self.name} model={self.model} tools={list(self.tools)}>"

    # --- limits as declared: tool > agent > default; what an operator sets comes before them (LimitBoard) -----------

    def tool_timeout_s(self, tool: Tool) -> float:
        """L1 of one try of this tool, in seconds (A1)."""
        return self.timeouts.call if tool.timeout is None else tool.timeout

    def tool_retry_policy(self, tool: Tool) -> RetryPolicy:
        """How failed tries of this tool are repeated (C6)."""
        return self.tool_retry if tool.retry is None else tool.retry

    def tool_on_failure(self, tool: Tool) -> OnFailure:
        """Whether effects of this tool stay or are undone when the run fails (E4)."""
        return self.on_failure if tool.on_failure is None else tool.on_failure

    def total_s(self, run_s: float | None = None) -> float:
        """Seconds from a run's first claim: `timeouts.total`, else attempts x L3 (`run_s` or as declared) + cleanup."""
        if self.timeouts.total is not None:
            return self.timeouts.total
        cleanup = self.timeouts.cleanup
        attempt_s = self.timeouts.run if run_s is None else run_s
        return self.max_attempts * attempt_s + (_DEFAULT_CLEANUP_S if cleanup is None else cleanup)

    def max_sends_per_step(self) -> int:
        """The most model requests one step can send (C4): 1 + retries + fallback models."""
        return 1 + self.retry.retries + len(self.fallback_models)

    def declaration(self) -> dict[str, Any]:
        """What workers publish and `makegood agents show` prints: JSON, without `model_args` (it may hold keys)."""
        return {
            "name": self.name,
            "kind": "prompt" if self.code is None else "code",
            "model": self.model,
            "fallback_models": list(self.fallback_models),
            "tools": [self._tool_declaration(each) for each in self.tools.values()],
            "timeouts": {**asdict(self.timeouts), "total": self.total_s()},
            "retry": asdict(self.retry),
            "tool_retry": asdict(self.tool_retry),
            "budgets": {"steps": self.budgets.steps},
            "max_attempts": self.max_attempts,
            "on_failure": self.on_failure,
            "input_schema": self.input_schema,
            "max_sends_per_step": self.max_sends_per_step(),
        }

    # --- input and output ---------------------------------------------------------------------------------------

    def typed_input(self, stored: Input) -> Input | BaseModel:
        """What `prompt(input)` and the agent's code see: the `input` model when there is one, else the stored value.

        Raises:
            InvalidInput: the stored value is not what `input=` asks for.
        """
        if self.input is None:
            return stored
        try:
            return self.input.model_validate_json(self._json(stored))
        except ValidationError as error:
            raise InvalidInput(
                f"The input of agent {self.name!r} is not valid: {problems(error)}; correct it and enqueue again."
            ) from None

    def first_message(self, stored: Input) -> str:
        """The first user message: the text; the value of a lone `text` key; `prompt(input)`; else the JSON.

        Raises:
            InvalidInput: see `typed_input`.
            DeclarationError: `prompt` returned no text.
        """
        if isinstance(stored, str):
            return stored
        if set(stored) == {"text"} and isinstance(stored["text"], str):
            return stored["text"]
        if self.prompt is None:
            return self._json(stored)
        made = self.prompt(self.typed_input(stored))
        if not isinstance(made, str):
            raise DeclarationError(
                f"Agent {self.name!r}: prompt(input) gave {type(made).__name__}; return a text."
            )
        return made

    def parse_output(self, text: str) -> Any:
        """The run's output from the last assistant text: the text, or the JSON object `output=` asks for.

        Raises:
            OutputInvalid: the text is not that object; the sentence may be told to the model.
        """
        if self.output is None:
            return text
        fenced = _FENCED.fullmatch(text)
        try:
            answer = self.output.model_validate_json(fenced.group(1) if fenced else text)
            return answer.model_dump(mode="json", by_alias=True)
        except ValidationError as error:
            raise OutputInvalid(
                f"The answer is not a valid {self.output.__name__}: {problems(error)}."
            ) from None

    def _check_undo(self, says: str) -> None:
        """E10. An `irreversible` tool passes: when its run fails after it succeeded, a person reviews the run."""
        undone = [tool for tool in self.tools.values() if self.tool_on_failure(tool) == "rollback"]
        bare = [tool for tool in undone if tool.effect in ("write", "idempotent") and not tool.compensation]
        if bare:
            where = "the tool" if len(bare) == 1 else "these tools"
            where += "" if any(tool.on_failure for tool in bare) else " or the agent"
            raise DeclarationError(
                f"{says}: rollback cannot undo {', '.join(tool.name for tool in bare)} without a compensation; "
                f"add {', '.join(f'@{tool.name}.compensate' for tool in bare)} before the agent is made, "
                f'or set on_failure="keep" on {where}.'
            )

    def _tool_declaration(self, tool: Tool) -> dict[str, Any]:
        identity = list(tool.identity) if isinstance(tool.identity, tuple) else tool.identity and "ALL"
        return {
            "name": tool.name,
            "effect": tool.effect,
            "identity": identity,
            "timeout": self.tool_timeout_s(tool),
            "timeout_from": "agent" if tool.timeout is None else "tool",
            "slow": tool.slow,
            "isolation": tool.isolation,
            "breaker": tool.breaker,
            "on_failure": self.tool_on_failure(tool),
            "compensates": tool.compensation is not None,
            "probes": tool.probe_with is not None,
        }

    def _json(self, value: Input) -> str:
        try:
            return json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(
                f"The input of agent {self.name!r} is no JSON ({str(error)[:120]}); give texts, numbers, lists and objects."
            ) from None


def _takes_options_of(_: Callable[P, Agent]) -> Callable[[Callable[..., D]], Callable[P, D]]:
    """Gives the decorated function the signature of `Agent` for type checkers."""
    return lambda fn: fn


@_takes_options_of(Agent)
def agent(*args: Any, **options: Any) -> Callable[[AgentCode], Agent]:
    """Declare `async def code(ctx, input)` as an agent that runs code instead of a prompt; takes what Agent takes.

    Raises:
        DeclarationError: the function is not async or does not take (ctx, input); or see Agent.
    """

    def declare(code: AgentCode) -> Agent:
        made = Agent(*args, **options)
        if not inspect.iscoroutinefunction(code):
            raise DeclarationError(f"Agent {made.name!r}: write its code as async def code(ctx, input).")
        check_signature(f"Agent {made.name!r}", code, ("ctx", "input"))
        object.__setattr__(made, "code", code)
        return made

    return declare


def _text(field: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise DeclarationError(
            f'{field} is {str(value)[:60]!r}; give the name of a model, as "openai/gpt-5-mini".'
        )
    return value


def _tools(says: str, given: object) -> dict[str, Tool]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise DeclarationError(f"{says}: tools must be a list of tools.")
    found: dict[str, Tool] = {}
    for each in given:
        if not isinstance(each, Tool):
            shown = getattr(each, "__name__", type(each).__name__)
            raise DeclarationError(f"{says}: {shown} is no tool; put @tool(effect=…, identity=…) above it.")
        if each.name in found:
            raise DeclarationError(f"{says} has two tools named {each.name!r}; rename one.")
        found[each.name] = each
    return found


def _model_args(says: str, given: object) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise DeclarationError(f"{says}: model_args must be a dict with texts as keys.")
    for key, instead in _RESERVED.items():
        if key in given:
            raise DeclarationError(f"{says}: model_args may not set {key!r}; use {instead} instead.")
    return dict(given)


def _fallbacks(says: str, given: object) -> tuple[str, ...]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise DeclarationError(f"{says}: fallback_models must be a list of model names.")
    return tuple(_text(f"{says}: fallback_models", each) for each in given)


def _policy(says: str, field: str, given: object, kind: type[T]) -> T:
    if not isinstance(given, kind):
        raise DeclarationError(f"{says}: {field} must be {kind.__name__}(…), not {type(given).__name__}.")
    return given


def _model_class(says: str, field: str, given: object) -> type[BaseModel] | None:
    if given is None or (isinstance(given, type) and issubclass(given, BaseModel)):
        return given
    raise DeclarationError(f"{says}: {field} must be a pydantic model class (a subclass of BaseModel).")


def _hook(says: str, field: str, given: Any, wanted: tuple[str, ...]) -> Callable[..., Any] | None:
    if given is not None:
        check_signature(f"{says}: {field}", given, wanted)
    return cast("Callable[..., Any] | None", given)
