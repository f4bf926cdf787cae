// Runs a Google Apps Script in Node: `node apps-script.cjs SCRIPT FUNCTION CELL…`. The services that
// a spreadsheet offers to scripts stand here. `UrlFetchApp` blocks until it has a response, as there.
// Prints the cells that the script writes, one row per line.
const { execFileSync } = require('node:child_process');
const { readFileSync } = require('node:fs');
const { runInNewContext } = require('node:vm');

const [, , script, entry, ...cells] = process.argv;
const written = new Map();

const cellAt = (row) => ({
  offset: (rows, columns) => ({
    setValues: (values) => written.set(row + rows, [columns, ...values[0]].join('|')),
  }),
});
const selection = {
  getDisplayValues: () => cells.map((cell) => [cell]),
  getCell: (row) => cellAt(row),
};

/** Sends a request with curl, and parses the response. */
function fetch(url, { method, contentType, headers, payload }) {
  const given = Object.entries({ ...headers, 'Content-Type': contentType });
  const args = ['-sSi', '--http1.1', '-X', method.toUpperCase(), url];
  for (const [name, value] of given) args.push('-H', `${name}: ${value}`);
  if (payload) args.push('--data-binary', payload);
  const text = execFileSync('curl', args, { encoding: 'utf8' });
  const [head, ...body] = text.split('\r\n\r\n');
  const [status, ...lines] = head.split('\r\n');
  const pairs = lines.map((line) => /^([^:]+): *(.*)$/.exec(line).slice(1));
  const capitalized = (name) => name.replace(/(^|-)[a-z]/g, (letter) => letter.toUpperCase());
  return {
    getResponseCode: () => Number(status.split(' ')[1]),
    getAllHeaders: () =>
      Object.fromEntries(pairs.map(([name, value]) => [capitalized(name), value])),
    getContentText: () => body.join('\r\n\r\n'),
  };
}

const services = {
  SpreadsheetApp: { getActiveRange: () => selection },
  PropertiesService: {
    getScriptProperties: () => ({ getProperty: (name) => process.env[name] }),
  },
  UrlFetchApp: { fetch },
  Utilities: {
    sleep: (ms) => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms),
  },
};
runInNewContext(`${readFileSync(script, 'utf8')}\n${entry}();`, services);
for (let row = 1; row <= cells.length; row += 1) console.log(written.get(row) ?? '');
