"""Tables in Markdown files."""


def table(columns, rows, right=()):
    """The lines of a table. right: names of the columns that are aligned to the right."""
    alignment = ["---:" if column in right else "---" for column in columns]
    return [f"| {' | '.join(map(str, row))} |" for row in (columns, alignment, *rows)]


def replace(path, name, lines):
    """Replace the lines between the comments NAME and "end" of a file."""
    with open(path) as file:
        before, rest = file.read().split(f"<!-- {name} -->\n")
        after = rest.split("<!-- end -->\n", 1)[1]
    with open(path, "w") as file:
        file.write(before + f"<!-- {name} -->\n" + "\n".join(lines) + "\n<!-- end -->\n" + after)
