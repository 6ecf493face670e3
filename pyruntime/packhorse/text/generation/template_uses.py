"""Facts about chat templates: which variables they read, and whether contents of messages are texts
or lists of parts to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from jinja2 import Environment

_KINDS = ("string", "sequence", "iterable", "mapping")  # tests of Jinja for the kind of a content
_MOST_ALIASES = 8  # names, each given to the next one, by which a template may call a content
_Kind = Literal["messages", "message", "content"]


class TemplateUses:
    """Facts about one template, found in its syntax. Raises what `Environment.parse` raises.

    takes_parts   whether it loops over the parts of a content
    checks_kind   whether it asks of what kind a content is, and so reads either
    """

    def __init__(self, environment: Environment, template: str) -> None:
        from jinja2 import nodes

        self._nodes: Any = nodes
        tree = environment.parse(template)
        self._names = {one.name for one in tree.find_all(nodes.Name) if one.ctx == "load"}
        self._kinds: dict[str, _Kind] = {"messages": "messages"}
        self._macros = {one.name: one.args for one in tree.find_all(nodes.Macro)}
        for _ in range(_MOST_ALIASES):
            if not self._find_more(tree):
                break
        self.takes_parts = any(
            self._kind(loop.iter) == "content" for loop in tree.find_all(nodes.For)
        )
        self.checks_kind = any(
            test.name in _KINDS and self._kind(test.node) == "content"
            for test in tree.find_all(nodes.Test)
        )

    def reads(self, variable: str) -> bool:
        return variable in self._names

    def _find_more(self, tree: Any) -> bool:
        """Names that stand for the conversation or a part of it; whether any was new."""
        nodes, before = self._nodes, len(self._kinds)
        for one in tree.find_all((nodes.Assign, nodes.For, nodes.Call)):
            if isinstance(one, nodes.Assign):
                self._name(one.target, self._kind(one.node))
            elif isinstance(one, nodes.For):
                if self._kind(one.iter) == "messages":
                    self._name(one.target, "message")
            elif isinstance(one.node, nodes.Name):
                arguments = zip(self._macros.get(one.node.name, ()), one.args, strict=False)
                for target, value in arguments:
                    self._name(target, self._kind(value))
        return len(self._kinds) > before

    def _name(self, target: Any, kind: _Kind | None) -> None:
        if kind is not None and isinstance(target, self._nodes.Name):
            self._kinds.setdefault(target.name, kind)

    def _kind(self, node: Any) -> _Kind | None:
        """The part of the conversation that an expression stands for."""
        nodes = self._nodes
        if isinstance(node, nodes.Name):
            return self._kinds.get(node.name)
        if isinstance(node, nodes.Filter):
            return self._kind(node.node)
        if isinstance(node, nodes.CondExpr):
            return self._kind(node.expr1) or self._kind(node.expr2)
        if isinstance(node, nodes.Getattr):
            return self._part(node.node, node.attr)
        if isinstance(node, nodes.Getitem):
            if isinstance(node.arg, nodes.Slice):
                return self._kind(node.node)
            return self._part(node.node, getattr(node.arg, "value", None))
        return None

    def _part(self, whole: Any, key: object) -> _Kind | None:
        kind = self._kind(whole)
        if kind == "messages":
            return "message"
        return "content" if kind == "message" and key == "content" else None
