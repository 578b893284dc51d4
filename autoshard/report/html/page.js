// The views of a page, from the data in it.

function number(title, place) {
  return { title, kind: "number", cell: (row) => row[place][1], key: (row) => row[place][0] };
}

function text(title, place, kind = null) {
  return { title, kind, cell: (row) => row[place], key: (row) => row[place] };
}

function lineColumn(place) {
  return { title: "line", cell: (row) => lineCell(row[place]), key: (row) => row[place] };
}

function opsView() {
  const most = data.ops.length ? data.ops[0][7][0] : 0;
  longTable({
    mount: document.getElementById("ops-view"),
    caption: "Ops by predicted time",
    rows: data.ops,
    text: (row) => `${row[0]} ${row[1]} ${row[2]} ${data.shardings[row[3]].spec}`,
    leftOut: data.leftOut.ops,
    filters: [{ label: "Op", of: (row) => row[0] }],
    columns: [
      text("op", 0),
      lineColumn(1),
      text("result", 2, "type"),
      { title: "sharding", cell: (row) => shardingCell(row[3]) },
      number("runs", 4),
      number("compute", 5),
      number("comm.", 6),
      number("total", 7),
      { title: "", cell: (row) => timeBar(row[5][0], row[6][0], most) },
    ],
  });
}

function movedView() {
  const most = data.moved.length ? data.moved[0][5][0] : 0;
  longTable({
    mount: document.getElementById("moved-view"),
    caption: "Collectives by op",
    rows: data.moved,
    text: (row) => row.slice(0, 3).join(" "),
    leftOut: data.leftOut.moved,
    filters: [
      { label: "Kind", of: (row) => row[1] },
      { label: "Axes", of: (row) => row[2] },
    ],
    columns: [
      text("for", 0),
      text("kind", 1, "word"),
      text("over", 2),
      {
        title: "group", kind: "number", cell: (row) => row[3].toLocaleString("en-US"),
        key: (row) => row[3],
      },
      number("runs", 4),
      number("bytes", 5),
      { title: "", cell: (row) => oneBar("communication", row[5][0], most) },
    ],
  });
}

function valuesView() {
  longTable({
    mount: document.getElementById("values-view"),
    caption: "Values and their shardings",
    rows: data.values,
    text: (row) => `${row.slice(0, 4).join(" ")} ${data.shardings[row[5]].spec}`,
    leftOut: data.leftOut.values,
    filters: [
      { label: "Kind", of: (row) => row[0] },
      { label: "Sharding", of: (row) => data.shardings[row[5]].spec },
    ],
    detail: (row) => shardingDetail(row[1] || row[0], row[4], row[5]),
    columns: [
      text("name", 1),
      text("kind", 0, "word"),
      lineColumn(2),
      text("type", 3, "type"),
      { title: "sharding", cell: (row) => shardingCell(row[5]), key: (row) => data.shardings[row[5]].spec },
      number("bytes", 6),
    ],
  });
}

function changeCell(said, sharding) {
  const code = make("code", {}, said);
  return sharding < 0 ? code : make("span", { class: "sharding" }, thumb(sharding), code);
}

function changesView() {
  const mount = document.getElementById("changes-view");
  if (!mount) return;
  longTable({
    mount,
    caption: "What differs",
    rows: data.changes,
    text: (row) => row.slice(0, 5).join(" "),
    filters: [{ label: "Subject", of: (row) => row[0] }],
    columns: [
      text("what", 1),
      text("subject", 0, "word"),
      { title: "before", cell: (row) => changeCell(row[2], row[5]) },
      { title: "after", cell: (row) => changeCell(row[3], row[6]) },
      { title: "change", kind: "number", cell: (row) => row[4] },
    ],
  });
}

// The user's lines, file by file; a line opens to its ops and its collectives.
function linesView() {
  const mount = document.getElementById("lines-view");
  const most = Math.max(0, ...data.lines.map((line) => line[3][0]));
  const texts = data.lines.map((line) => [
    line[0], ...line[5].map((op) => data.ops[op][0]),
    ...line[6].map((place) => `${data.moved[place][1]} ${data.moved[place][2]}`),
  ].join(" ").toLowerCase());
  const list = make("div", { class: "lines" });
  const status = make("p", { class: "remark", role: "status" });
  const more = make("button", { type: "button", class: "more" }, "Show more");
  let words = [];
  let limit = 2 * ROWS_AT_ONCE;

  function inside(line) {
    const [ops, moved] = [line[5].map((n) => data.ops[n]), line[6].map((n) => data.moved[n])];
    const parts = [];
    if (ops.length) {
      parts.push(plainTable("Ops of this line", [
        text("op", 0), text("result", 2, "type"),
        { title: "sharding", cell: (row) => shardingCell(row[3]) },
        number("runs", 4), number("compute", 5), number("comm.", 6),
      ], ops.slice(0, 100)));
    }
    if (moved.length) {
      parts.push(plainTable("Reshards and sums of this line", [
        text("collective", 1, "word"), text("over", 2), text("for", 0), number("runs", 4), number("bytes", 5),
      ], moved.slice(0, 100)));
    }
    const rest = Math.max(0, ops.length - 100) + Math.max(0, moved.length - 100);
    if (rest) parts.push(make("p", { class: "remark" }, `and ${counted(rest, "row")} more`));
    return parts;
  }

  function lineView(line) {
    const [, , place] = line[0].match(/^([^:]*):(.*)$/s) || [line[0], "", line[0] || "no line"];
    const note = line[6].length ? counted(line[6].length, "collective") : "";
    const view = make("details", {},
      make("summary", {},
        make("span", { class: "where" }, place),
        timeBar(line[1][0], line[2][0], most),
        make("span", { class: "number" }, line[3][1]),
        make("span", { class: "note" }, note ? `${note}, ${line[4][1]}` : "")));
    view.addEventListener("toggle", () => {
      if (view.open && view.children.length === 1) view.append(...inside(line));
    });
    return view;
  }

  function update() {
    const found = data.lines.filter((_, place) => matches(texts[place], words));
    const parts = [];
    let file = null;
    found.slice(0, limit).forEach((line) => {
      const own = line[0].includes(":") ? line[0].split(":")[0] : "";
      if (own !== file) parts.push(make("h3", {}, own || "without a source line"));
      file = own;
      parts.push(lineView(line));
    });
    list.replaceChildren(...parts);
    const of = found.length === data.lines.length ? "" : ` of ${data.lines.length.toLocaleString("en-US")}`;
    status.textContent = `${found.length.toLocaleString("en-US")}${of} lines`;
    more.hidden = found.length <= limit;
  }

  more.addEventListener("click", () => {
    limit += 4 * ROWS_AT_ONCE;
    update();
  });
  searched.push((found) => {
    words = found;
    limit = 2 * ROWS_AT_ONCE;
    update();
  });
  update();
  mount.replaceChildren(make("div", { class: "controls" }, status), list, more);
}

changesView();
memoryView();
opsView();
linesView();
movedView();
valuesView();
startSearch();
document.documentElement.dataset.ready = "yes";
