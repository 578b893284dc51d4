// Memory over the program: the curve, the largest tensors under it, and what is held at one place.

const LANE = 17;
const MOST_LANES = 14;
const MOST_HELD = isNarrow ? 5 : 10;

function momentAt(moments, op) {
  let low = 0;
  let high = moments.length - 1;
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (moments[middle][0] <= op) low = middle;
    else high = middle - 1;
  }
  return moments[low];
}

// The largest tensors, each in a lane that is free for as long as it is held.
function packLanes(held) {
  const ends = [];
  const largest = [...held].sort((a, b) => b[5][0] - a[5][0]);
  const placed = [];
  largest.forEach((tensor) => {
    let lane = ends.findIndex((taken) => taken.every(
      ([start, stop]) => tensor[7] <= start || stop <= tensor[6]));
    if (lane < 0 && ends.length < MOST_LANES) lane = ends.push([]) - 1;
    if (lane >= 0) {
      ends[lane].push([tensor[6], tensor[7]]);
      placed.push([tensor, lane]);
    }
  });
  return [placed, ends.length];
}

function steps(points, x, y, last) {
  return points.map(([op, bytes], place) => {
    const until = place + 1 < points.length ? points[place + 1][0] : last;
    return `${place ? "L" : "M"}${x(op)} ${y(bytes)}H${x(Math.max(op, until))}`;
  }).join("");
}

function memoryView() {
  const { moments, held, budget, ticks, peak, before } = data.memory;
  const mount = document.getElementById("memory-view");
  if (!moments.length) {
    mount.replaceChildren(make("p", { class: "remark" }, "The plan says nothing of it."));
    return;
  }
  const last = moments[moments.length - 1][0] + 1;
  const top = ticks[ticks.length - 1][0] || 1;
  const [placed, numLanes] = packLanes(held);
  const at = moments.reduce((best, moment) => (moment[1] > best[1] ? moment : best))[0];
  const slider = make("input", {
    type: "range", min: moments[0][0], max: last - 1, value: at, id: "memory-place",
  });
  const chart = make("div", { class: "chart" });
  const said = make("p", { class: "said", id: "memory-said" });
  const table = make("div", {});
  let cursor = null;
  let toX = null;
  let toOp = null;

  function drawChart() {
    const width = Math.max(260, chart.clientWidth);
    const left = 62;
    const right = 12;
    const high = 200;
    const x = (op) => (left + ((width - left - right) * op) / last).toFixed(1);
    const y = (bytes) => (12 + (high - 12) * (1 - bytes / top)).toFixed(1);
    const height = high + 14 + numLanes * LANE;
    const picture = shape("svg", {
      class: "memory", viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
      "aria-label": `Bytes held over the program; the most is at op ${at}`,
    });
    ticks.forEach(([bytes, text]) => picture.append(
      shape("line", { class: "grid", x1: left, x2: width - right, y1: y(bytes), y2: y(bytes) }),
      shape("text", { class: "tick", x: left - 8, y: y(bytes) }, text)));
    const curve = steps(moments, x, y, last);
    picture.append(
      shape("path", { class: "area", d: `${curve}V${y(0)}H${x(moments[0][0])}Z` }),
      shape("path", { class: "curve", d: curve }));
    if (before.length) {
      const end = before[before.length - 1][0] + 1;
      const scaled = before.map(([op, bytes]) => [(op * last) / end, bytes]);
      picture.append(shape("path", { class: "before", d: steps(scaled, x, y, last) }));
    }
    if (budget && budget[0] > top) {
      picture.append(shape("text", { class: "budget", x: width - right, y: 9 },
        `${budget[1]} allowed, above this`));
    } else if (budget) {
      picture.append(
        shape("line", { class: "budget", x1: left, x2: width - right, y1: y(budget[0]), y2: y(budget[0]) }),
        shape("text", { class: "budget", x: width - right, y: Number(y(budget[0])) - 5 },
          `${budget[1]} allowed`));
    }
    picture.append(shape("circle", { class: "peak", cx: x(at), cy: y(Math.min(peak, top)), r: 4 }));
    placed.forEach(([tensor, lane]) => {
      const from = Number(x(tensor[6]));
      const wide = Math.max(1.5, Number(x(Math.min(tensor[7], last))) - from - 1);
      const lower = high + 14 + lane * LANE;
      const label = `${tensor[0] || tensor[2] || "unnamed"} ${tensor[5][1]}`;
      const room = Math.floor((wide - 8) / 6.2);
      picture.append(shape("rect", {
        class: `lane ${tensor[1]}`, x: from, y: lower, width: wide, height: LANE - 3, rx: 2,
      }, shape("title", {}, `${label}, ops ${tensor[6]} to ${tensor[7] - 1}`)));
      if (room >= 6) {
        picture.append(shape("text", { class: "lane", x: from + 5, y: lower + LANE / 2 - 1 },
          label.length <= room ? label : `${label.slice(0, room - 1)}…`));
      }
    });
    cursor = shape("line", { class: "cursor", y1: 4, y2: height });
    picture.append(cursor);
    toX = x;
    toOp = (pixel) => ((pixel - left) * last) / (width - left - right);
    chart.replaceChildren(picture);
    show();
  }

  function show() {
    const op = Number(slider.value);
    const [from, bytes, text, unnamed, where] = momentAt(moments, op);
    cursor.setAttribute("x1", toX(op + 0.5));
    cursor.setAttribute("x2", toX(op + 0.5));
    const place = where || (from === op ? "" : `since op ${from}`);
    said.textContent = `op ${op.toLocaleString("en-US")}${place ? `, ${place}` : ""}: ${text} held`;
    slider.setAttribute("aria-valuetext", said.textContent);
    const live = held.filter((tensor) => tensor[6] <= op && op < tensor[7]);
    live.sort((a, b) => b[5][0] - a[5][0]);
    const rows = live.slice(0, MOST_HELD);
    const most = rows.length ? rows[0][5][0] : 1;
    const columns = [
      { title: "tensor", cell: (row) => row[0] || "unnamed" },
      { title: "line", cell: (row) => lineCell(row[2]) },
      { title: "type", kind: "type", cell: (row) => row[3] },
      { title: "sharding", cell: (row) => shardingCell(row[4]) },
      { title: "bytes", kind: "number", cell: (row) => row[5][1] },
      { title: "", cell: (row) => oneBar(`held ${row[1]}`, row[5][0], most) },
    ];
    const rest = [];
    if (live.length > rows.length) rest.push(`${live.length - rows.length} smaller ones not listed`);
    if (unnamed) rest.push(`${unnamed} in others`);
    const remark = make("p", { class: "remark" }, rest.length ? `And ${rest.join("; ")}.` : "");
    table.replaceChildren(plainTable("Largest tensors held at this op", columns, rows), remark);
  }

  slider.addEventListener("input", show);
  const point = (event) => {
    const op = Math.floor(toOp(event.clientX - chart.getBoundingClientRect().left));
    slider.value = String(Math.max(Number(slider.min), Math.min(last - 1, op)));
    show();
  };
  chart.addEventListener("pointerdown", point);
  chart.addEventListener("pointermove", (event) => {
    if (event.buttons) point(event);
  });
  const label = make("label", { for: "memory-place" }, "Place in the program");
  const toPeak = make("button", { type: "button" }, "To the peak");
  toPeak.addEventListener("click", () => {
    slider.value = String(at);
    show();
  });
  mount.replaceChildren(chart, make("div", { class: "place" }, label, slider),
    make("div", { class: "controls" }, said, toPeak), table);
  drawChart();
  let drawn = chart.clientWidth;
  new ResizeObserver(() => requestAnimationFrame(() => {
    if (chart.clientWidth === drawn) return;
    drawn = chart.clientWidth;
    drawChart();
  })).observe(chart);
}
