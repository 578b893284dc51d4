// Shardings drawn: the tensor cut into pieces, and the devices, each in the colour of its piece.

const MOST_LABELS = 64;
const thumbs = new Map();

// Where a piece is along the first dimension that is cut, and along all others together.
function piecePlace(pieces, number) {
  const first = pieces.findIndex((count) => count > 1);
  const below = pieces.slice(first + 1).reduce((product, count) => product * count, 1);
  return first < 0 ? [0, 0] : [Math.floor(number / below), number % below];
}

function pieceGrid(pieces) {
  const first = pieces.findIndex((count) => count > 1);
  const below = pieces.slice(first + 1).reduce((product, count) => product * count, 1);
  return first < 0 ? [1, 1] : [pieces[first], below];
}

function pieceColor(pieces, number) {
  const [rows, columns] = pieceGrid(pieces);
  if (number < 0) return "transparent";
  if (rows * columns === 1) return "oklch(0.78 0.015 250)";
  const [row, column] = piecePlace(pieces, number);
  const hue = 235 - (rows > 1 ? (190 * row) / (rows - 1) : 0);
  const light = 0.82 - (columns > 1 ? (0.3 * column) / (columns - 1) : 0.1);
  return `oklch(${light.toFixed(3)} 0.085 ${((hue + 360) % 360).toFixed(1)})`;
}

function inkOn(pieces, number) {
  const [, columns] = pieceGrid(pieces);
  const [, column] = piecePlace(pieces, number);
  return columns > 1 && column / (columns - 1) > 0.65 ? "#ffffff" : "#14181c";
}

function cutText(pieces) {
  const cut = pieces.filter((count) => count > 1);
  return cut.length ? `cut into ${cut.join(" × ")} pieces` : "whole on every device";
}

function gridOf(number) {
  return data.grids[data.shardings[number].grid];
}

function numRows(grid) {
  return Math.ceil(grid.devices.length / grid.columns);
}

// A small picture, drawn once for each sharding.
function thumb(number) {
  if (!thumbs.has(number)) {
    const { pieces, held } = data.shardings[number];
    const grid = gridOf(number);
    const cell = Math.max(2, Math.min(9, Math.floor(40 / numRows(grid)), Math.floor(96 / grid.columns)));
    const canvas = make("canvas", {
      width: grid.columns * cell * 2, height: numRows(grid) * cell * 2,
    });
    const brush = canvas.getContext("2d");
    const gap = cell > 3 ? 2 : 0;
    held.forEach((piece, place) => {
      brush.fillStyle = pieceColor(pieces, piece);
      brush.fillRect((place % grid.columns) * cell * 2,
        Math.floor(place / grid.columns) * cell * 2, cell * 2 - gap, cell * 2 - gap);
    });
    thumbs.set(number, [canvas.toDataURL(), canvas.width / 2, canvas.height / 2]);
  }
  const [source, width, height] = thumbs.get(number);
  return make("img", {
    src: source, width, height, class: "thumb", alt: cutText(data.shardings[number].pieces),
  });
}

function shardingCell(number) {
  const { spec } = data.shardings[number];
  return make("span", { class: "sharding" },
    thumb(number), make("code", { class: spec.length <= 30 ? "short" : null }, spec));
}

function meshPicture(number) {
  const { pieces, held } = data.shardings[number];
  const grid = gridOf(number);
  const { columns, devices } = grid;
  const cell = Math.max(10, Math.min(38, Math.floor(300 / columns)));
  const digits = String(Math.max(...devices)).length;
  const size = Math.min(11, (cell - 3) / (0.62 * digits)).toFixed(1);
  const picture = shape("svg", {
    class: "mesh", role: "img", viewBox: `0 0 ${columns * cell} ${numRows(grid) * cell}`,
    width: columns * cell, height: numRows(grid) * cell,
    "aria-label": `${counted(devices.length, "device")}, tensor ${cutText(pieces)}`,
  });
  held.forEach((piece, place) => {
    const x = (place % columns) * cell;
    const y = Math.floor(place / columns) * cell;
    picture.append(shape("rect", {
      x: x + 1, y: y + 1, width: cell - 2, height: cell - 2, rx: cell > 20 ? 3 : 1,
      fill: pieceColor(pieces, piece), "data-piece": piece,
    }, shape("title", {}, piece < 0
      ? `device ${devices[place]} holds nothing`
      : `device ${devices[place]} holds piece ${pieceText(pieces, piece)}`)));
    if (size >= 8) {
      picture.append(shape("text", {
        x: x + cell / 2, y: y + cell / 2, fill: inkOn(pieces, piece), class: "device",
        "font-size": size,
      }, String(devices[place])));
    }
  });
  return picture;
}

function pieceText(pieces, number) {
  const place = [];
  for (let dim = pieces.length - 1; dim >= 0; dim -= 1) {
    place.unshift(number % pieces[dim]);
    number = Math.floor(number / pieces[dim]);
  }
  return `(${place.join(", ")})`;
}

// The tensor as a rectangle: its first dimension that is cut goes down, the others across.
function tensorPicture(number) {
  const { pieces, held } = data.shardings[number];
  const { devices } = gridOf(number);
  const [rows, columns] = pieceGrid(pieces);
  const isLast = pieces.findIndex((count) => count > 1) === pieces.length - 1;
  const [down, across] = isLast ? [1, rows * columns] : [rows, columns];
  const width = 300;
  const height = Math.max(40, Math.min(240, down * 30, down * 300));
  const picture = shape("svg", {
    class: "tensor", role: "img", viewBox: `0 0 ${width} ${height}`, width, height,
    "aria-label": `tensor ${cutText(pieces)}`,
  });
  for (let piece = 0; piece < Math.min(rows * columns, 4096); piece += 1) {
    const [row, column] = isLast ? [0, piece] : [Math.floor(piece / columns), piece % columns];
    const size = [width / across, height / down];
    const on = held.flatMap((at, place) => (at === piece ? [devices[place]] : []));
    picture.append(shape("rect", {
      x: column * size[0], y: row * size[1], width: Math.max(0.5, size[0] - 1),
      height: Math.max(0.5, size[1] - 1), fill: pieceColor(pieces, piece),
    }, shape("title", {}, `piece ${pieceText(pieces, piece)} on devices ${on.join(", ")}`)));
    if (rows * columns <= MOST_LABELS && size[0] >= 26) {
      const room = Math.max(1, Math.floor(size[0] / 8));
      const label = on.join(" ");
      picture.append(shape("text", {
        x: (column + 0.5) * size[0], y: (row + 0.5) * size[1], class: "device", "font-size": 11,
        fill: inkOn(pieces, piece),
      }, label.length <= room ? label : `${on[0]} +${on.length - 1}`));
    }
  }
  return picture;
}

// Both pictures and what they say, for one value.
function shardingDetail(name, sizes, number) {
  const { pieces, axes, sums, spec } = data.shardings[number];
  const facts = pieces.map((count, dim) => {
    const whole = sizes ? sizes[dim].toLocaleString("en-US") : "";
    const local = sizes ? Math.ceil(sizes[dim] / count).toLocaleString("en-US") : "";
    if (count === 1) return `dimension ${dim}: ${whole ? `${whole}, ` : ""}not cut`;
    return `dimension ${dim}: ${whole ? `${whole} = ` : ""}${count} pieces`
      + `${local ? ` of ${local}` : ""} over ${axes[dim]}`;
  });
  if (sums.length) facts.push(`each device holds a term of a sum over ${sums.join(", ")}`);
  const { down, across, numDevices, devices } = gridOf(number);
  const directions = `${across.join(", ")} across${down.length ? `; ${down.join(", ")} down` : ""}`;
  const cut = devices.length < numDevices
    ? `; the first ${counted(devices.length, "device")} of ${numDevices.toLocaleString("en-US")}` : "";
  return make("div", { class: "drawing" },
    make("figure", {}, make("figcaption", {}, `${name}, with the devices of each piece`),
      tensorPicture(number)),
    make("figure", {}, make("figcaption", {}, `the mesh: ${directions}${cut}`), meshPicture(number)),
    make("div", {}, make("code", {}, spec), make("ul", {},
      ...facts.map((fact) => make("li", {}, fact)))));
}
