"""A parser that reads a page into a tree of elements."""

from html.parser import HTMLParser


class Node:
    """An element of a page, with its content."""

    def __init__(self, tag, attributes):
        self.tag, self.attributes, self.children = tag, attributes, []

    def all(self, tag=None, **attributes):
        """Every element inside with a tag and attributes, in order (`class_` is one of an element's classes)."""
        for child in self.children:
            if isinstance(child, Node):
                if (tag is None or child.tag == tag) and all(child.has(k, v) for k, v in attributes.items()):
                    yield child
                yield from child.all(tag, **attributes)

    def has(self, name, value):
        found = self.attributes.get(name.rstrip("_").replace("_", "-"))
        return found is not None and (value in found.split() if name == "class_" else found == value)

    @property
    def text(self):
        return "".join(child if isinstance(child, str) else child.text for child in self.children)


class Reader(HTMLParser):
    VOID = ("meta", "link", "br", "img", "input", "hr")

    def __init__(self):
        super().__init__()
        self.root = Node("document", {})
        self.open = [self.root]

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice: {names}"
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(node)
        if tag not in self.VOID:
            self.open.append(node)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].children.append(data)
