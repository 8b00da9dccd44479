"""A function's parameters as a JSON schema for the model, and the checks in front of the function.

The schema and the checks are one pydantic model, made from the type hints. Its fields have invented names with
the parameters' names as aliases, so that a parameter may be called `schema` or `model_config`.
"""

from __future__ import annotations

import inspect
import json
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from types import FrameType, SimpleNamespace
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import to_jsonable_python

from makegood.errors import ArgumentsInvalid, DeclarationError
from makegood.tasks.masking import mask_named, ordered, revealed

MAX_ARGUMENTS_BYTES: Final = 1024 * 1024  # what a model may send for one call; more is a model gone astray
_SHOWN_PROBLEMS: Final = 5
_SHOWN_CHARS: Final = 120
_OUTER_FRAMES: Final = 8
_SUBSCHEMAS: Final = frozenset(
    (
        "properties",
        "patternProperties",
        "items",
        "prefixItems",
        "additionalProperties",
        "anyOf",
        "oneOf",
        "allOf",
    )
)
_STRICT_JSON: Final = json.JSONEncoder(allow_nan=False, ensure_ascii=False)
_CONFIG: Final = ConfigDict(extra="forbid", ser_json_inf_nan="constants", defer_build=False)


class _PlainSchema(GenerateJsonSchema):
    """Without generated titles (tokens that say nothing) and without warnings about defaults JSON cannot hold."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  # pydantic's own declaration

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class Arguments:
    """The arguments of one tool, read from the signature of its function.

    Attributes:
        names: the parameters after `ctx`, in order.
        json_schema: an object schema that allows nothing else.
        secret: the parameters whose type is, or contains, a SecretStr.
    """

    def __init__(self, tool: str, fn: Callable[..., Any], scope: Mapping[str, Any]) -> None:
        """Raises DeclarationError when a parameter has no usable type hint; `scope` holds names of outer functions."""
        self._tool = tool
        parameters = _parameters(tool, fn)
        self.names: tuple[str, ...] = tuple(parameters)
        self._fields = {name: f"a{index}" for index, name in enumerate(self.names)}
        self._model = _argument_model(tool, fn, parameters, self._fields, scope)
        self.json_schema = _object_schema(tool, self._model)
        # Only then can there be a set, whose order is nobody's, or a value that JSON cannot hold.
        self._free = any(
            _is_free(part) for part in _parts(self.json_schema, self.json_schema.get("$defs", {}))
        )
        self.secret = frozenset(name for name in self.names if name in secret_names(self.json_schema))

    def parse(self, raw_json: str | None) -> dict[str, Any]:
        """The keyword arguments in the text a model sent (B3: parsed once, here); an empty text means none.

        Raises:
            ArgumentsInvalid: one short sentence the model can act upon; never more than a glimpse of what it sent.
        """
        given: object = raw_json
        if given is None:
            return self.bind({})
        if not isinstance(given, str):
            raise self._invalid("they must be a JSON object")
        if _too_long(given):
            raise self._invalid("they have more than 1 MiB; send less, or a reference")
        text = given if given.strip() else "{}"
        return self._checked(lambda: self._model.model_validate_json(text))

    def bind(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The same for Python values: what `ctx.call(tool, **kwargs)` got. Raises ArgumentsInvalid."""
        bound = self._checked(lambda: self._model.model_validate(dict(kwargs)))
        # A text from a parser is well-formed; one made by Python code may hold half a character.
        if not self._free:
            self._refuse_broken(self.encode(bound, reveal=True))
        return bound

    def encode(
        self, kwargs: Mapping[str, Any], secret_fields: Iterable[str] = (), *, reveal: bool = False
    ) -> dict[str, Any]:
        """Checked arguments as JSON, for the journal and the digests: secrets masked, sets in a fixed order.

        Args:
            kwargs: what `parse` or `bind` returned.
            secret_fields: names masked at any depth, upper or lower case (MAKEGOOD_SECRET_FIELDS).
            reveal: write secrets in clear; for what never leaves this machine.

        Raises:
            ArgumentsInvalid: a value cannot be written as JSON.
        """
        values = {self._fields[name]: kwargs[name] for name in self.names if name in kwargs}
        return self._encoded(self._model.model_construct(**values), kwargs, secret_fields, reveal)

    def masked_names(self, secret_fields: Iterable[str] = ()) -> frozenset[str]:
        """The parameters of which the journal may hold only a mask, by type or by name."""
        named = {each.casefold() for each in secret_fields}
        hidden = {
            name
            for name, schema in self.json_schema["properties"].items()
            if name.casefold() in named or named & _property_names(schema, self.json_schema.get("$defs", {}))
        }
        return self.secret | hidden

    def _checked(self, validate: Callable[[], BaseModel]) -> dict[str, Any]:
        try:
            model = validate()
        except ValidationError as error:
            raise self._invalid(problems(error, self.names)) from None
        except Exception as error:
            # A validator of the user's own may raise anything; the model can at least try other arguments.
            raise self._invalid(f"checking them failed with {type(error).__name__}") from error
        kwargs = {name: getattr(model, field) for name, field in self._fields.items()}
        if self._free:
            self._encoded(model, kwargs)
        return kwargs

    def _encoded(
        self,
        model: BaseModel,
        kwargs: Mapping[str, Any],
        secret_fields: Iterable[str] = (),
        reveal: bool = False,
    ) -> dict[str, Any]:
        try:
            dumped = model.model_dump(mode="python" if reveal else "json", by_alias=True, warnings=False)
            if reveal:
                dumped = to_jsonable_python(revealed(dumped), inf_nan_mode="constants")
            encoded = {name: dumped[name] for name in self.names if name in kwargs}
            if self._free:
                encoded = {name: ordered(kwargs[name], value) for name, value in encoded.items()}
        except (ValueError, TypeError, RecursionError) as error:
            raise self._invalid(f"a value is no JSON ({_cut(str(error))})") from error
        if self._free:
            self._refuse_broken(encoded)
        masked: dict[str, Any] = mask_named(encoded, secret_fields)
        return masked

    def _refuse_broken(self, encoded: Mapping[str, Any]) -> None:
        try:
            _STRICT_JSON.encode(encoded).encode("utf-8")
        except (ValueError, TypeError, RecursionError) as error:
            raise self._invalid(f"a value is no JSON ({_cut(str(error))})") from error

    def _invalid(self, problem: str) -> ArgumentsInvalid:
        return ArgumentsInvalid(f"The arguments of {self._tool} are not valid: {problem}.")


def object_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of an input or output model. Raises DeclarationError when there is none."""
    return _object_schema(model.__name__, model, keep_title=True)


def problems(error: ValidationError, known: Iterable[str] = ()) -> str:
    """`title: is required; colour: is not an argument (known: …)`: short, and without the values that were sent."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    listed = [_problem(each["type"], each["loc"], each["msg"], known) for each in found[:_SHOWN_PROBLEMS]]
    if len(found) > _SHOWN_PROBLEMS:
        listed.append(f"and {len(found) - _SHOWN_PROBLEMS} more")
    return "; ".join(listed)


def secret_names(schema: Mapping[str, Any]) -> frozenset[str]:
    """The properties of an object schema that are, or contain, a secret."""
    definitions = schema.get("$defs", {})
    found = schema.get("properties", {}).items()
    return frozenset(
        name for name, each in found if any("writeOnly" in part for part in _parts(each, definitions))
    )


def scope_of(frame: FrameType | None, fn: Callable[..., Any]) -> dict[str, Any]:
    """Names that hints of a function defined inside functions may mean: its closure, then the frames it stands in."""
    module = inspect.unwrap(fn).__globals__
    frames: list[FrameType] = []
    while frame is not None and len(frames) < _OUTER_FRAMES and frame.f_globals is module:
        frames.append(frame)
        frame = frame.f_back
    scope: dict[str, Any] = {}
    for each in reversed(frames):
        if each.f_locals is not each.f_globals:
            scope.update(each.f_locals)
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            scope[name] = cell.cell_contents
        except ValueError:
            continue  # assigned later, as the name of a tool that calls itself
    return scope


def caller(depth: int) -> FrameType | None:
    """The frame `depth` calls above the function that asks."""
    return sys._getframe(depth + 1)


def _parameters(tool: str, fn: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    parameters = list(inspect.signature(fn).parameters.values())
    if not parameters or not _is_context(parameters[0]):
        raise DeclarationError(
            f"Tool {tool!r} must take ctx first: def {tool}(ctx: ToolContext, …), also when it does not use it."
        )
    for each in parameters[1:]:
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            raise DeclarationError(
                f"Tool {tool!r} takes {each}, which no schema can describe; name every parameter."
            )
        if each.kind is each.POSITIONAL_ONLY:
            raise DeclarationError(
                f"Tool {tool!r} takes {each.name!r} by position only; move the / behind ctx."
            )
        if each.annotation is each.empty:
            raise DeclarationError(f"Tool {tool!r}: parameter {each.name!r} has no type hint; add one.")
    return {each.name: each for each in parameters[1:]}


def _is_context(first: inspect.Parameter) -> bool:
    if first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        return False
    hint = first.annotation
    written = hint if isinstance(hint, str) else getattr(hint, "__name__", "")
    return first.name.lstrip("_") == "ctx" or written.rpartition(".")[2] == "ToolContext"


def _argument_model(
    tool: str,
    fn: Callable[..., Any],
    parameters: Mapping[str, inspect.Parameter],
    field_names: Mapping[str, str],
    scope: Mapping[str, Any],
) -> type[BaseModel]:
    definitions: dict[str, Any] = {}
    for name, parameter in parameters.items():
        hint = _resolved(tool, name, parameter.annotation, fn, scope)
        alias = Field(alias=name, validation_alias=name, serialization_alias=name)
        default = ... if parameter.default is parameter.empty else parameter.default
        definitions[field_names[name]] = (Annotated[hint, alias], default)
    try:
        model: type[BaseModel] = create_model(tool, __config__=_CONFIG, **definitions)
        # Also resolves forward references of models that were defined inside a function.
        model.model_rebuild(_types_namespace={**inspect.unwrap(fn).__globals__, **scope})
    except (PydanticUserError, NameError, TypeError) as error:
        raise DeclarationError(
            f"Tool {tool!r} has a type hint that is no JSON: {_first_line(error)}"
        ) from error
    for name, field in field_names.items():
        if model.model_fields[field].alias != name:
            raise DeclarationError(
                f"Tool {tool!r}: parameter {name!r} has an alias; remove it, its own name is used."
            )
    return model


def _resolved(tool: str, name: str, hint: Any, fn: Callable[..., Any], scope: Mapping[str, Any]) -> Any:
    holder = SimpleNamespace(__annotations__={name: hint})
    origin: Any = inspect.unwrap(fn)
    try:
        return typing.get_type_hints(holder, origin.__globals__, dict(scope), include_extras=True)[name]
    except Exception as error:
        raise DeclarationError(
            f"Tool {tool!r}: the type hint of {name!r} cannot be resolved ({_first_line(error)}); "
            "import or define its names where the tool is defined."
        ) from error


def _object_schema(owner: str, model: type[BaseModel], *, keep_title: bool = False) -> dict[str, Any]:
    try:
        schema = model.model_json_schema(schema_generator=_PlainSchema)
        json.dumps(schema, allow_nan=False)
    except (PydanticUserError, ValueError, TypeError, NameError) as error:
        raise DeclarationError(
            f"{owner!r} has a type hint that no JSON schema can describe: {_first_line(error)}"
        ) from error
    if not keep_title:
        schema.pop("title", None)
    schema.setdefault("properties", {})
    return schema


def _problem(kind: str, loc: tuple[int | str, ...], message: str, known: Iterable[str]) -> str:
    where = ".".join(_cut(str(part), 40) for part in loc[:6])
    if kind == "missing":
        return f"{where}: is required"
    if kind == "extra_forbidden":
        names = ", ".join(known) if len(loc) == 1 else ""
        return f"{where}: is not an argument" + (f" (known: {_cut(names, 300)})" if names else "")
    if kind in ("json_invalid", "string_unicode") and not loc:
        return _cut(message.replace("Invalid JSON", "they are not valid JSON"))
    if kind in ("model_type", "model_attributes_type", "dict_type") and not loc:
        return "they must be a JSON object"
    text = _cut(message[:1].lower() + message[1:])
    return f"{where}: {text}" if where else text


def _parts(
    schema: Any, definitions: Mapping[str, Any], seen: frozenset[str] = frozenset()
) -> Iterable[dict[str, Any]]:
    """Every sub-schema of a schema, each definition once per path; defaults and names are none."""
    if not isinstance(schema, dict):
        return
    yield schema
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if name in definitions and name not in seen:
        yield from _parts(definitions[name], definitions, seen | {name})
    for key in _SUBSCHEMAS & set(schema):
        below = schema[key]
        if isinstance(below, dict):
            below = below.values() if key in ("properties", "patternProperties") else [below]
        for each in below if not isinstance(below, bool) else ():
            yield from _parts(each, definitions, seen)


def _is_free(schema: Mapping[str, Any]) -> bool:
    """Whether a sub-schema admits sets, floats or anything at all."""
    kind = schema.get("type")
    if "uniqueItems" in schema or kind == "number" or schema.get("additionalProperties") is True:
        return True
    return kind is None and not {"$ref", "anyOf", "oneOf", "allOf", "enum", "const"} & set(schema)


def _property_names(schema: Any, definitions: Mapping[str, Any]) -> set[str]:
    return {
        str(name).casefold() for part in _parts(schema, definitions) for name in part.get("properties", ())
    }


def _too_long(text: str) -> bool:
    if len(text) > MAX_ARGUMENTS_BYTES:
        return True
    return not text.isascii() and len(text.encode("utf-8", "surrogatepass")) > MAX_ARGUMENTS_BYTES


def _cut(text: str, limit: int = _SHOWN_CHARS) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _first_line(error: BaseException) -> str:
    return _cut(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__)
