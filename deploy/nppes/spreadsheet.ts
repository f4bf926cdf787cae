import columns from './columns.json' with { type: 'json' };
import type { CsvRecord } from './csv.ts';
import { type Header, ImportProblem, type MemberKind } from './layout.ts';
import { isDateForm, isScientific } from './rows.ts';

// Spreadsheet programs change what they open and save: dates take another form, and numbers lose digits. Rows of such a
// file may read well and be wrong, so the whole file is refused.

/** States whose ZIP codes begin with a zero (USPS, Publication 65). */
const ZERO_STATES: ReadonlySet<string> = new Set('CT MA ME NH NJ PR RI VI VT'.split(' '));

/** @throws {ImportProblem} if the columns of a header are separated by anything but commas */
export function requireCommas(file: string, names: readonly string[]): void {
  const isOne = names.length === 1 && /^"?NPI"?\s*[;\t|]/i.test(names[0] ?? '');
  if (isOne) throw resaved(file, ['its columns are not separated by commas']);
}

/**
 * Looks for traces of a spreadsheet program by the form of values. A file has them if most values that would show one
 * do: a single odd one may stand in the original.
 */
export function traceReader(kind: MemberKind, header: Header) {
  const { npidata, pl } = columns;
  const npiAt = header.at('NPI');
  const datesAt = kind === 'npidata' ? npidata.dates.map(header.at) : [];
  const place = kind === 'npidata' ? npidata.practice : kind === 'pl' ? pl.place : [];
  const [, , , stateAt = -1, zipAt = -1] = place.map(header.at);
  const npis: boolean[] = [];
  const dates: boolean[] = [];
  const zips: boolean[] = [];
  const traces = {
    'NPIs are rounded': npis,
    'dates are not MM/DD/YYYY': dates,
    'ZIP codes have lost their first zeros': zips,
  };
  return {
    look(record: CsvRecord): void {
      if (record.columns !== header.columns) return;
      const said = datesAt.map((at) => record.text(at)).filter((date) => date !== '');
      npis.push(isScientific(record.text(npiAt)));
      dates.push(...said.map((date) => !isDateForm(date)));
      if (ZERO_STATES.has(record.text(stateAt)))
        zips.push(/^([0-9]{3,4}|[0-9]{7,8})$/.test(record.text(zipAt)));
    },
    /** @throws {ImportProblem} if the rows looked at have traces */
    requireNone(file: string): void {
      const found = Object.entries(traces).filter(([, is]) => is.filter(Boolean).length * 2 > is.length);
      const changes = found.map(([says]) => says);
      if (changes.length > 0) throw resaved(file, changes);
    },
  };
}

function resaved(file: string, changes: readonly string[]): ImportProblem {
  return new ImportProblem(
    `${file} was saved by a spreadsheet program: ${changes.join(', ')}. Import it as it is in CMS's zip, or download that again from https://download.cms.gov/nppes/NPI_Files.html`,
  );
}
