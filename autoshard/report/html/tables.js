// Tables: plain ones, and long ones that show their first rows, search, filter and sort.

const ROWS_AT_ONCE = isNarrow ? 12 : 25;
const searched = []; // what to call with the words searched for

function headerCell(column, content) {
  return make("th", {
    scope: "col", role: "columnheader", class: column.kind,
  }, content);
}

function rowOf(columns, row, expand) {
  return make("tr", { role: "row" }, ...columns.map((column, place) => {
    const content = column.cell(row);
    const inside = place === 0 && expand ? expand(content) : content;
    return make(place === 0 ? "th" : "td", {
      role: place === 0 ? "rowheader" : "cell",
      scope: place === 0 ? "row" : null,
      class: column.kind,
      "data-label": column.title,
    }, inside);
  }));
}

function frame(caption, headers, body) {
  return make("div", { class: "table" },
    make("table", { role: "table" },
      make("caption", {}, caption),
      make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...headers)),
      body));
}

function plainTable(caption, columns, rows) {
  const body = make("tbody", { role: "rowgroup" }, ...rows.map((row) => rowOf(columns, row)));
  return frame(caption, columns.map((column) => headerCell(column, column.title)), body);
}

function matches(text, words) {
  return words.every((word) => text.includes(word));
}

// A long table in the element `mount`.
//   columns: title, kind ("number"), cell(row), and key(row) where one can sort by it
//   text(row): what search looks in
//   filters: label and of(row), a text to choose by
//   detail(row): shown under a row when its name is pressed
function longTable({ mount, caption, columns, rows, text, filters = [], detail = null, leftOut = 0 }) {
  const texts = rows.map((row) => text(row).toLowerCase());
  const state = { words: [], chosen: filters.map(() => ""), sort: null, shown: ROWS_AT_ONCE };
  const body = make("tbody", { role: "rowgroup" });
  const status = make("p", { class: "remark", role: "status" });
  const more = make("button", { type: "button", class: "more" }, "Show more");

  const headers = columns.map((column, place) => {
    if (!column.key) return headerCell(column, column.title);
    const button = make("button", { type: "button", class: "sort" }, column.title);
    button.addEventListener("click", () => {
      const descending = state.sort && state.sort.place === place
        ? !state.sort.descending : column.kind === "number";
      state.sort = { place, descending };
      headers.forEach((header) => header.removeAttribute("aria-sort"));
      headers[place].setAttribute("aria-sort", descending ? "descending" : "ascending");
      state.shown = ROWS_AT_ONCE;
      update();
    });
    return headerCell(column, button);
  });

  const selects = filters.map((filter, place) => {
    const values = [...new Set(rows.map(filter.of))].filter((value) => value !== "").sort();
    const select = make("select", {}, make("option", { value: "" }, "all"),
      ...values.map((value) => make("option", { value }, value)));
    select.addEventListener("change", () => {
      state.chosen[place] = select.value;
      state.shown = ROWS_AT_ONCE;
      update();
    });
    return values.length > 1 ? make("label", {}, `${filter.label} `, select) : null;
  });

  function expander(row) {
    return (content) => {
      const button = make("button", { type: "button", class: "open", "aria-expanded": "false" },
        content);
      button.addEventListener("click", () => {
        const line = button.closest("tr");
        const isOpen = button.getAttribute("aria-expanded") === "true";
        button.setAttribute("aria-expanded", String(!isOpen));
        if (isOpen) line.nextElementSibling.remove();
        else {
          line.after(make("tr", { role: "row", class: "detail" },
            make("td", { role: "cell", colspan: columns.length }, detail(row))));
        }
      });
      return button;
    };
  }

  function update() {
    let found = [];
    for (let number = 0; number < rows.length; number += 1) {
      const isChosen = filters.every(
        (filter, place) => !state.chosen[place] || filter.of(rows[number]) === state.chosen[place]);
      if (isChosen && matches(texts[number], state.words)) found.push(rows[number]);
    }
    if (state.sort) {
      const { key } = columns[state.sort.place];
      const sign = state.sort.descending ? -1 : 1;
      found = found.map((row, number) => [key(row), number, row]);
      found.sort((a, b) => (a[0] < b[0] ? -sign : a[0] > b[0] ? sign : a[1] - b[1]));
      found = found.map((item) => item[2]);
    }
    const shown = found.slice(0, state.shown);
    body.replaceChildren(...shown.map((row) => rowOf(columns, row, detail && expander(row))));
    const of = found.length === rows.length ? "" : ` of ${rows.length.toLocaleString("en-US")}`;
    const first = shown.length < found.length
      ? `, the first ${shown.length.toLocaleString("en-US")} shown` : "";
    const rest = leftOut ? `; ${leftOut.toLocaleString("en-US")} more in the plan file` : "";
    status.textContent = `${found.length.toLocaleString("en-US")}${of} rows${first}${rest}`;
    more.hidden = shown.length === found.length;
  }

  more.addEventListener("click", () => {
    state.shown += 4 * ROWS_AT_ONCE;
    update();
  });
  searched.push((words) => {
    state.words = words;
    state.shown = ROWS_AT_ONCE;
    update();
  });
  update();
  mount.replaceChildren(
    make("div", { class: "controls" }, ...selects, status), frame(caption, headers, body), more);
}

// Search: every word has to be somewhere in the row. `/` goes to the field.
function startSearch() {
  const field = document.getElementById("search");
  let waiting = 0;
  const search = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter((word) => word);
    searched.forEach((update) => update(words));
  };
  field.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(search, 60);
  });
  document.addEventListener("keydown", (event) => {
    const isTyping = /^(input|select|textarea)$/i.test(event.target.tagName)
      && event.target.type !== "range";
    if (event.key === "/" && !isTyping) {
      event.preventDefault();
      field.focus();
    }
  });
}
