// The status page: asks the daemon every two seconds, and shows what it says.
//
// Its rules: what comes from the daemon is text, never markup: whatever a job is called, it is shown as that. And what says the
// same as before stays as it is, so that nothing is read out anew and no selection is lost.
"use strict";

// Milliseconds between two looks, and after which an answer is not waited for any more.
const EVERY = 2000;
const PATIENCE = 5000;

// A job that waits for more than this share of its time starves; a wait of more seconds than that is one that is told.
const STARVES = 0.05;
const LONG = 1;

// A tier that gave more than this share of its capacity to others on its disk has less cache than its admin thinks.
const GIVEN_UP = 0.1;

// Looks that the charts remember: five minutes. After so many that were missed in a row they begin anew.
const REMEMBERED = 150;
const MISSED = 5;

// Seconds by which the clock of another node may differ, and members that are shown.
const SKEW = 5;
const MEMBERS_SHOWN = 64;

// Checkpoints shown: those of a day with one an hour.
const CHECKPOINTS = 24;

// What a wait can be for, as the daemon names it, and what would help.
const CAUSES = {
  origin: "origin: more link or more cache",
  peer: "other nodes: their link, disks or origin",
  tier_read: "tier read: the cache's disks",
  index: "index: the cache's disks",
  ring_empty: "ring empty: on its way, or the trainer holds all slots",
  decode: "decode: more threads, or a GPU",
  h2d: "copies to the GPU",
  slab: "slab: memory that other jobs hold",
};

const $ = (id) => document.getElementById(id);
const memory = { history: [], before: null, timer: null, asking: null };

/** An element with attributes and children; text is text. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(count) : count.toFixed(1)} ${units[unit]}`;
}

function percent(share) {
  return `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}

function time(seconds) {
  if (seconds < 10) return `${Math.max(0, seconds).toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

const number = (count) => Math.round(count).toLocaleString("en");

/** Makes an element what `made` is, and touches only what differs. */
function renew(old, made) {
  for (const { name } of [...old.attributes]) if (!made.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of made.attributes) {
    if (old.getAttribute(name) === value) continue;
    // The page's policy allows no style that comes as text.
    if (name === "style") old.style.cssText = made.style.cssText;
    else old.setAttribute(name, value);
  }
  fill(old, ...made.childNodes);
}

/** Gives an element these children. Those with a key are known by it, whatever goes before them; others by their place. */
function fill(parent, ...wanted) {
  const key = (node) => node?.dataset?.key;
  const keys = new Set(wanted.map(key));
  for (const child of [...parent.children]) if (key(child) !== undefined && !keys.has(key(child))) child.remove();
  const keyed = new Map([...parent.children].map((child) => [key(child), child]));
  let at = parent.firstChild;
  for (const made of wanted) {
    const old = key(made) === undefined ? at : keyed.get(key(made));
    // Should two have one key, the second is made anew.
    keyed.delete(key(made));
    if (!old || old.nodeName !== made.nodeName || key(old) !== key(made)) {
      parent.insertBefore(made, at);
      continue;
    }
    if (old === at) at = at.nextSibling;
    else parent.insertBefore(old, at);
    if (old.nodeType !== Node.TEXT_NODE) renew(old, made);
    else if (old.data !== made.data) old.data = made.data;
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

/** Fills a table. A row is its key, which is the same as long as it tells of the same, and its cells. */
function table(id, heads, rows, none) {
  const head = element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head))));
  const body = element("tbody");
  for (const [key, first, ...others] of rows) {
    const row = element("tr", { "data-key": String(key) }, element("th", { scope: "row" }, ...[first].flat()));
    row.append(...others.map((cell) => element("td", {}, ...[cell].flat())));
    body.append(row);
  }
  if (rows.length === 0) body.append(element("tr", {}, element("td", { colspan: heads.length }, none)));
  fill($(id), head, body);
}

const small = (text) => element("span", { class: "small" }, text);

function fullness(used, limit) {
  if (!limit) return [bytes(used)];
  const label = `${bytes(used)} of ${bytes(limit)}`;
  return [element("meter", { min: 0, max: limit, value: used, "aria-label": label }), small(`${label} (${percent(used / limit)})`)];
}

/** A job's waits of late, as a bar and in words. */
function waits(progress) {
  const lately = progress && progress.lately;
  if (!lately) return small("not known yet");
  const causes = Object.entries(lately.waited_for).filter(([, share]) => share >= 0.005);
  causes.sort((one, other) => other[1] - one[1]);
  const words = causes.map(([cause, share]) => `${cause.replace("_", " ")} ${percent(share)}`);
  const bar = element("span", { class: "bar", "aria-hidden": "true" });
  for (const [cause, share] of causes) {
    const part = element("i");
    part.style.width = `${100 * share}%`;
    part.style.background = `var(--${cause})`;
    bar.append(part);
  }
  const said = [bar, `${percent(lately.waited_share)} of the time`, small(words.join(", "))];
  if (progress.waiting_seconds > LONG) {
    said.push(element("span", { class: "bad" }, `waits now, ${time(progress.waiting_seconds)} so far`));
  }
  return said;
}

/** When the next shard that is not here is needed, and when it comes. */
function horizon(foreseen) {
  if (!foreseen) return small("it told no order beforehand");
  if (foreseen.shards === 0) return small("nothing of it is kept by foresight: what it lacks is not known beforehand");
  if (!foreseen.lacks) return "all is here";
  const { url, needed_in: needed, arrives_in: arrives, refused } = foreseen.lacks;
  // That there is no room before it is needed is no fault of anything: what is here is needed sooner.
  const bad = arrives === undefined ? refused !== "room" : arrives > needed;
  const never = refused === "room" ? "there is no room for it before then: cached shards are needed sooner, or a quota is full" : "its origin does not deliver it";
  const words = arrives === undefined ? `needed in ${time(needed)}; ${never}` : `needed in ${time(needed)}, arrives in ${time(arrives)}`;
  return [element("span", { class: bad ? "bad" : "" }, words), small(url)];
}

/** The share of its time that a job waited lately. */
const waited = (job) => job.progress?.lately?.waited_share ?? 0;

/** How long a job has waited by now. */
const waitsNow = (job) => job.progress?.waiting_seconds ?? 0;

const isWaiting = (job) => waited(job) > STARVES || waitsNow(job) > LONG;

function showJobs(status) {
  const foreseen = new Map(status.foresight.jobs.map((job) => [job.job, job]));
  // Those that wait come first; among their like rows keep their places, whatever figures do.
  const jobs = [...status.jobs].sort((one, other) => isWaiting(other) - isWaiting(one) || one.session - other.session);
  const rows = jobs.map((job) => {
    const progress = job.progress;
    const lately = progress && progress.lately;
    const reads = lately
      ? [`${number(lately.samples_per_second)} samples/s`, small(`${bytes(lately.bytes_per_second)}/s; ${number(progress.samples)} samples so far`)]
      : [small(progress ? `${number(progress.samples)} samples so far` : "nothing yet")];
    const notes = [job.tenant ? `tenant ${job.tenant}` : null, `session ${job.session}`].filter(Boolean);
    if (job.wrong_shards > 0) notes.push(`${job.wrong_shards} shards were corrupt`);
    const [slow] = job.slowest ?? [];
    if (slow && isWaiting(job)) notes.push(`slowest: ${slow.stage}${slow.field ? ` of ${slow.field}` : ""} took ${time(slow.seconds)} for ${slow.key} in ${slow.url}`);
    return [job.session, [job.name, small(notes.join(", "))], reads, waits(progress), horizon(foreseen.get(job.session))];
  });
  table("jobs-table", ["Job", "Reads", "Waits, of the last seconds", "First shard to come"], rows, "No job is connected.");
}

function showGpus(gpus) {
  $("gpus").hidden = gpus === undefined;
  if (gpus === undefined) return;
  $("gpus-failing").textContent = gpus.failing ? `They cannot be read: ${gpus.failing}` : "";
  const share = (value) => (value === undefined ? "" : percent(value));
  const rate = (value) => (value === undefined ? "not told" : `${bytes(value)}/s`);
  const rows = gpus.devices.map((gpu) => {
    const jpeg = gpu.jpeg_shares.map(percent).join(", ");
    const users = gpu.jobs.map((job) => `${job.name} (session ${job.session})`);
    if (gpu.other_processes > 0) users.push(`${gpu.other_processes} other processes`);
    return [
      gpu.uuid,
      [`${gpu.index} ${gpu.model}`, small(gpu.uuid)],
      gpu.failing ? element("span", { class: "bad" }, gpu.failing)
        : [share(gpu.sm_share), small(gpu.is_monitored ? `of its multiprocessors, over ${time(gpu.over_seconds)}` : "of the time, with any kernel")],
      jpeg || small("not told"),
      [`in ${rate(gpu.pcie_in_bytes_per_second)}`, small(`out ${rate(gpu.pcie_out_bytes_per_second)}`)],
      gpu.memory_bytes === undefined ? small("not told") : fullness(gpu.memory_used_bytes, gpu.memory_bytes),
      users.length > 0 ? users.join(", ") : small("nobody"),
    ];
  });
  table("gpus-table", ["GPU", "Busy", "JPEG engines", "PCIe", "Memory", "Used by"], rows, "None is told of.");
}

/** Whether others on its disk have more of a tier than is worth no word. */
function isGivenUp(tier) {
  return tier.limit_bytes < (1 - GIVEN_UP) * tier.capacity_bytes;
}

function showTiers(tiers) {
  const rows = tiers.map((tier) => {
    const asked = tier.hits + tier.misses;
    const well = tier.condition === "normal";
    const device = [tier.mode, tier.device].filter(Boolean).join(", ");
    const counted = tier.corruptions === undefined ? null : small(
      `${number(tier.corruptions)} corruptions, ${number(tier.io_errors)} I/O errors, ${bytes(tier.written_bytes)} written`);
    const others = tier.limit_bytes < tier.capacity_bytes
      ? element("span", { class: isGivenUp(tier) ? "small bad" : "small" }, `others fill the disk: it may hold ${bytes(tier.limit_bytes)} now`) : null;
    return [
      tier.name,
      [tier.name, small(tier.class)],
      [...fullness(tier.used_bytes, tier.capacity_bytes), others],
      asked > 0 ? [percent(tier.hits / asked), small(`of ${number(asked)} shards opened`)] : small("nothing opened yet"),
      [element("span", { class: well ? "" : "bad" }, tier.condition), small([device, tier.why].filter(Boolean).join("; ")), counted],
    ];
  });
  table("tiers-table", ["Tier", "Holds", "Hits", "Device"], rows, "There are no tiers.");
}

function showHoldings(id, what, holdings) {
  $(id).hidden = holdings.length === 0;
  const rows = holdings.map((one) => [
    one.name,
    one.name,
    fullness(one.used_bytes, one.max_bytes),
    number(one.shards),
    ...(what === "Data set" ? [[one.cache === "always" ? one.evict : `cached: ${one.cache}`]] : []),
  ]);
  table(`${id}-table`, [what, "Holds", "Shards", ...(what === "Data set" ? ["Given up by"] : [])], rows, "");
}

function showSources(sources) {
  $("sources").hidden = sources.length === 0;
  const rows = sources.map((source) => [
    source.endpoint,
    source.endpoint,
    source.down ? element("span", { class: "bad" }, "circuit breaker open") : "answers",
    bytes(source.bytes),
    `${source.under_way} under way of ${source.limit}, ${source.waiting} wait`,
    `${number(source.retries)} asked again, ${number(source.hedges)} asked twice`,
  ]);
  table("sources-table", ["Origin", "State", "Brought", "Requests", "Trouble"], rows, "");
}

/** The state of a member, as `forebay cluster ls` names it. */
function memberState(member) {
  if (member.is_self) return "this node";
  if (member.is_down) return "down";
  if (member.is_silent) return "silent";
  return member.greeted?.is_draining ? "draining" : "up";
}

/** What is not as it should be about a member. */
function memberTrouble(member) {
  const { greeted } = member;
  const said = [];
  if (greeted && !greeted.has_same_rules) said.push("other rules for data sets and sources");
  if (greeted && Math.abs(greeted.clock_ahead_seconds) > SKEW) {
    said.push(`its clock is ${Math.abs(greeted.clock_ahead_seconds)} s ${greeted.clock_ahead_seconds > 0 ? "ahead" : "behind"}`);
  }
  return said;
}

const memberIsWell = (member) => !member.is_down && !member.is_silent && memberTrouble(member).length === 0;

/** What is not in order about the node's own place in its cluster. */
function clusterTroubles(cluster) {
  const said = [];
  if (cluster.is_frozen) said.push(`The member list is an older one: ${cluster.source}: ${cluster.list_error ?? "it gives no list"}.`);
  if (cluster.is_draining) said.push(`${cluster.node} is draining${cluster.is_listed ? ", and still in the member list" : ""}.`);
  else if (!cluster.is_listed) said.push(`${cluster.node} is not in the member list: the others reject it.`);
  const down = cluster.members.filter((member) => member.is_down || member.is_silent).length;
  if (down > 0) said.push(`${down} nodes of the cluster do not answer.`);
  return said;
}

function showCluster(cluster) {
  $("cluster").hidden = cluster === undefined;
  if (cluster === undefined) return;
  const members = [...cluster.members].sort((one, other) => memberIsWell(one) - memberIsWell(other)).slice(0, MEMBERS_SHOWN);
  const rows = members.map((member) => {
    const fallbacks = member.fallbacks.map(([reason, count]) => `${number(count)} ${reason}`).join(", ");
    const trouble = [...memberTrouble(member), member.is_down ? member.error : null].filter(Boolean).join("; ");
    return [
      member.name,
      [member.name, small(member.address)],
      element("span", { class: memberIsWell(member) ? "" : "bad" }, memberState(member)),
      member.is_self ? `${bytes(cluster.serving.sent_bytes)} sent to others` : `${bytes(member.received_bytes)} received`,
      [fallbacks, trouble ? element("span", { class: "small bad" }, trouble) : null],
    ];
  });
  table("cluster-table", ["Node", "State", "Bytes", "Fallbacks"], rows, "The member list is empty.");
}

function showMounts(mounts) {
  $("mounts").hidden = mounts.length === 0;
  const rows = mounts.map((one) => [
    one.mount,
    one.mount,
    one.hangs ? element("span", { class: "bad" }, "hangs") : "answers",
    `${one.readers.length}, of which ${one.stuck.length} are stuck`,
  ]);
  table("mounts-table", ["Mount", "State", "Readers"], rows, "");
}

function showWarmUps(warmUps) {
  $("warm-ups").hidden = warmUps.length === 0;
  const rows = warmUps.map((one) => {
    const come = one.fetched + one.cached;
    const trouble = [
      one.failed > 0 ? `${number(one.failed)} could not be had` : null,
      one.untried > 0 ? `${number(one.untried)} not tried` : null,
    ].filter(Boolean);
    return [
      one.number,
      String(one.number),
      one.done ? "ended" : "runs",
      [`${number(come)} of ${number(one.shards)} shards are here`, trouble.length > 0 ? element("span", { class: "small bad" }, trouble.join(", ")) : null],
      [bytes(one.bytes), one.bandwidth ? small(`at most ${bytes(one.bandwidth)}/s`) : null],
    ];
  });
  table("warm-ups-table", ["Number", "State", "Shards", "Brought"], rows, "");
}

/** Checkpoints that are not published yet, and the newest of the others. */
function showCheckpoints({ checkpoints }) {
  $("checkpoints").hidden = checkpoints.length === 0;
  const waiting = checkpoints.filter((one) => one.level !== "published" || one.trouble);
  const shown = [...waiting, ...checkpoints.filter((one) => !waiting.includes(one))].slice(0, CHECKPOINTS);
  const rows = shown.map((one) => [
    one.url,
    [one.url, small([one.job, one.step === undefined ? null : `step ${number(one.step)}`].filter(Boolean).join(", "))],
    [one.level, one.trouble ? element("span", { class: "small bad" }, one.trouble) : null],
    `${bytes(one.uploaded_bytes)} of ${bytes(one.bytes)}`,
    number(one.files),
  ]);
  table("checkpoints-table", ["Checkpoint", "Level", "In the store", "Files here"], rows, "");
}

function figures(pairs) {
  const made = pairs.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)));
  fill($("figures"), ...made);
}

/** A line over the last minutes. */
function chart(name, values, shown) {
  const most = Math.max(...values, Number.EPSILON);
  const points = values.map((value, at) => `${((100 * at) / (REMEMBERED - 1)).toFixed(2)},${(29 - (28 * value) / most).toFixed(2)}`);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 100 30");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${name}: now ${shown(values.at(-1))}, at most ${shown(most)}`);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("points", points.join(" "));
  svg.append(line);
  return element("figure", {}, element("figcaption", {}, `${name}: ${shown(values.at(-1))}, at most ${shown(Math.max(...values))}`), svg);
}

function showHistory() {
  const { history } = memory;
  $("history").hidden = history.length < 2;
  if (history.length < 2) return;
  const rate = (bytesPerSecond) => `${bytes(bytesPerSecond)}/s`;
  fill(
    $("charts"),
    chart("Longest share of waiting of a job", history.map((one) => one.waited), percent),
    chart("From origins", history.map((one) => one.origin), rate),
    chart("From tiers", history.map((one) => one.tiers), rate),
  );
}

function remember(status) {
  const { before } = memory;
  const seconds = before ? status.uptime_seconds - before.uptime_seconds : 0;
  // Another daemon, or a tab that was hidden: what lies between is not known, and would stand beside its neighbours as one look.
  if (seconds < 0 || seconds > MISSED * EVERY / 1000) {
    memory.history = [];
  } else if (seconds > 0) {
    const rate = (key) => Math.max(0, status.cache[key] - before.cache[key]) / seconds;
    // What no tier takes comes from origins, too.
    const origin = rate("origin_bytes") + rate("through_bytes");
    memory.history.push({ waited: Math.max(0, ...status.jobs.map(waited)), origin, tiers: rate("tier_read_bytes") });
    memory.history = memory.history.slice(-REMEMBERED);
  }
  memory.before = status;
}

/** Jobs by their names: each rank is a session of its own. */
const named = (jobs) => new Set(jobs.map((job) => job.name));

/** A figure that differs at each look: who hears the page is told of what happens, and not of every second that it lasts. */
const passing = (text) => element("span", { "aria-live": "off" }, text);

/** What matters first, a sentence each. */
function verdict(status) {
  const waiting = status.jobs.filter(isWaiting);
  // A job of several ranks waits for the slowest.
  const who = (rank) => (status.jobs.filter((job) => job.name === rank.name).length > 1 ? `a rank of ${rank.name}` : rank.name);
  const { lacks } = status.foresight;
  // Whoever disabled a tier knows.
  const sick = status.tiers.filter((tier) => tier.condition !== "normal" && tier.mode !== "disabled");
  const said = [];
  if (waiting.length > 0) {
    const worst = waiting.reduce((one, other) => (waited(one) < waited(other) ? other : one));
    const causes = Object.entries(worst.progress.lately?.waited_for ?? {}).sort((one, other) => other[1] - one[1]);
    const cause = causes.length > 0 && causes[0][1] > 0 ? `, for ${causes[0][0].replace("_", " ")} most` : "";
    const share = waited(worst) > 0 ? [`; ${who(worst)} does for `, passing(percent(waited(worst))), ` of its time${cause}`] : [];
    said.push([`${named(waiting).size} of ${named(status.jobs).size} jobs wait`, ...share, "."]);
    // What a wait is for is known when it is over; until then the horizon and what does not answer are all there is to say.
    const longest = waiting.reduce((one, other) => (waitsNow(one) < waitsNow(other) ? other : one));
    if (waitsNow(longest) > LONG) said.push([`${who(longest)} waits now, `, passing(time(waitsNow(longest))), " so far."]);
  }
  for (const source of status.sources.filter((one) => one.down)) said.push([`${source.endpoint} does not answer.`]);
  if (status.cluster) said.push(...clusterTroubles(status.cluster).map((sentence) => [sentence]));
  for (const one of status.mounts.filter((mount) => mount.hangs)) said.push([`${one.mount} hangs; readers stuck there: ${one.stuck.length}.`]);
  const remedies = [
    lacks?.cache ? `${bytes(lacks.cache)} more of cache` : null,
    lacks?.bandwidth ? `${bytes(lacks.bandwidth)}/s more of link` : null,
  ].filter(Boolean);
  if (remedies.length > 0) said.push([passing(remedies.join(", or ")), " would let jobs read on."]);
  for (const tier of sick) said.push([`Tier ${tier.name} is ${tier.condition}.`]);
  for (const tier of status.tiers.filter(isGivenUp)) {
    said.push([`Others fill the disk of tier ${tier.name}: it may hold `, passing(bytes(tier.limit_bytes)), " now."]);
  }
  if (status.configuration?.drift) said.push(["The configuration's file differs from what is in force: forebay config diff."]);
  $("verdict").className = said.length > 0 ? "waits" : "";
  if (said.length === 0) said.push([status.jobs.length > 0 ? "No job waits for data." : "No job is connected."]);
  fill($("verdict"), ...said.map((sentence) => element("span", {}, ...sentence, " ")));
}

/** When the next fetch must begin, and what there is for it; of jobs that tell nothing ahead, that. */
function foreseen({ jobs, bandwidth, slack }, ranks) {
  if (jobs.length === 0) return ranks ? [["Next fetch", "of no job it is known what it reads next"]] : [];
  const next = slack === null ? "nothing is to come" : slack < 0 ? `${time(-slack)} late` : `within ${time(slack)}`;
  return [["Links bring", `${bytes(bandwidth)}/s`], ["Next fetch", next]];
}

function showAll(status) {
  remember(status);
  verdict(status);
  const { cache, foresight } = status;
  const [jobs, ranks] = [named(status.jobs).size, status.jobs.length];
  figures([
    ["Jobs", jobs === ranks ? number(jobs) : `${number(jobs)}, ${number(ranks)} ranks`],
    ["Cache", `${bytes(cache.used_bytes)} of ${bytes(cache.capacity_bytes)}`],
    ...foreseen(foresight, ranks),
    ["On their way", `${number(status.fills.running)} shards`],
  ]);
  $("jobs").hidden = false;
  showJobs(status);
  showGpus(status.gpus);
  showTiers(status.tiers);
  showHoldings("datasets", "Data set", cache.datasets);
  showHoldings("tenants", "Tenant", cache.tenants.length > 1 ? cache.tenants : []);
  showSources(status.sources);
  showCluster(status.cluster);
  showMounts(status.mounts);
  showCheckpoints(status.checkpoints);
  showWarmUps(status.warm_ups);
  showHistory();
}

/** What is shown to those who are no admins. */
function showOverview(overview) {
  for (const id of ["history", "jobs", "gpus", "datasets", "tenants", "sources", "cluster", "mounts", "checkpoints", "warm-ups"]) $(id).hidden = true;
  fill($("verdict"));
  figures([["Ranks of jobs", number(overview.jobs)], ["Up", time(overview.uptime_seconds)]]);
  showTiers(overview.tiers);
}

/** What the daemon answers; null where it does not know the token. */
async function ask(path, token) {
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const answer = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
  if (answer.status === 401) return null;
  if (!answer.ok) throw new Error(`it answers ${answer.status}`);
  return answer.json();
}

/** What the daemon tells whoever looks, and whether that is an admin. */
async function asked() {
  const token = sessionStorage.getItem("token");
  // What is for admins is asked for by admins alone: each refusal is noted in the daemon's audit log.
  const overview = await ask("api/v1/overview", token);
  if (overview === null) {
    // Unless another one was given meanwhile.
    if (sessionStorage.getItem("token") === token) {
      sessionStorage.removeItem("token");
      $("refused").textContent = "That is not the token.";
    }
    return asked();
  }
  return { isAdmin: overview.is_admin, told: overview.is_admin ? await ask("api/v1/status", token) : overview };
}

function draw({ isAdmin, told }) {
  // Who typed the token is not left on a form that is gone.
  if (isAdmin && $("admit").contains(document.activeElement)) $("main").focus();
  $("admit").hidden = isAdmin;
  if (isAdmin) showAll(told);
  else showOverview(told);
  $("release").textContent = `${told.release}, up ${time(told.uptime_seconds)}`;
}

async function look() {
  let answer;
  try {
    answer = await asked();
  } catch (error) {
    say(`The daemon does not answer (${error.message}); what is shown is old. Trying again.`);
    return;
  }
  try {
    draw(answer);
    say("live");
  } catch (error) {
    // No fault of the daemon's.
    say(`This page cannot show what the daemon says (${error.message}): a mistake of the page. forebay top may do.`);
    console.error(error);
  }
}

function say(text) {
  // Said aloud where it is new alone.
  if ($("state").textContent !== text) $("state").textContent = text;
}

async function watch() {
  clearTimeout(memory.timer);
  // One look at a time; nobody looks at a page that is hidden.
  memory.asking ??= look().finally(() => { memory.asking = null; });
  await memory.asking;
  clearTimeout(memory.timer);
  if (!document.hidden) memory.timer = setTimeout(watch, EVERY);
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  // What stands there is from before.
  say("asking the daemon …");
  watch();
});
$("token").addEventListener("submit", (event) => {
  event.preventDefault();
  $("refused").textContent = "";
  sessionStorage.setItem("token", $("secret").value);
  $("secret").value = "";
  watch();
});
for (const [cause, words] of Object.entries(CAUSES)) {
  const sample = element("i", { "aria-hidden": "true" });
  sample.style.background = `var(--${cause})`;
  $("causes").append(element("li", {}, sample, words));
}
watch();
