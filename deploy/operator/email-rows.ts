import { hasNpiCheckDigit } from '../../activities/person/npi.ts';
import { classify } from '../../activities/verification/domains.ts';
import { look } from '../../activities/verification/looks.ts';
import type { OwnEmail } from '../../db/lookups/imports.ts';
import { EMAIL_TYPES } from '../../db/words.ts';
import { ImportProblem } from '../nppes/layout.ts';
import type { Judged, Reading, Row } from './row-import.ts';

// Rows of the operator's own addresses: `npi,email[,type][,validated_at][,source]`, in the order of a header, or in
// this one without it.

const COLUMNS = ['npi', 'email', 'type', 'validated_at', 'source'] as const;
type Column = (typeof COLUMNS)[number];

const DAY_MS = 86_400_000;
const DATE =
  /^[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|[+-][0-9]{2}:[0-9]{2}))?$/;
/** A source's name, as it is stored with an address and shown to operators. */
export const SOURCE_NAME = /^[a-z0-9][a-z0-9._-]{0,39}$/;

/**
 * @param source of rows that name none
 * @throws {ImportProblem} where the first row is neither a header nor a row
 */
export function readEmailRows(first: Row, source: string, now: number): Reading<OwnEmail> {
  const names = first.cells.map((cell) => cell.toLowerCase().replaceAll(' ', '_'));
  const hasHeader = names.includes('npi') && names.includes('email');
  if (!hasHeader && !/^[0-9]{10}$/.test(first.cells[0] ?? '')) {
    throw new ImportProblem(
      'the first row must name the columns, npi and email at least, or be npi,email itself',
    );
  }
  const columns = hasHeader ? names : [...COLUMNS];
  return {
    hasHeader,
    judge: ({ cells }) =>
      judge((column) => cells[columns.indexOf(column)] ?? '', cells.length === 0, source, now),
  };
}

function judge(
  cell: (column: Column) => string,
  isBroken: boolean,
  defaultSource: string,
  now: number,
): Judged<OwnEmail> {
  if (isBroken) return { verdict: 'broken_row' };
  const npi = cell('npi');
  if (!hasNpiCheckDigit(npi)) return { verdict: 'invalid_npi' };
  const looked = look(cell('email'));
  if (looked.kind === 'refused') {
    return { verdict: looked.reason === 'syntax' ? 'invalid_address' : looked.reason };
  }
  const { address } = looked;
  const given = cell('type').toLowerCase();
  const type = EMAIL_TYPES.find((one) => one === given) ?? null;
  if (given !== '' && type === null) return { verdict: 'bad_type' };
  const validatedAt = parseDate(cell('validated_at'), now);
  if (validatedAt === 'bad') return { verdict: 'bad_date' };
  const source = cell('source').toLowerCase() || defaultSource;
  if (!SOURCE_NAME.test(source)) return { verdict: 'bad_source' };
  return {
    store: { npi, email: address.email, emailType: classify(address.domain, type), validatedAt, source },
  };
}

/** ISO 8601, a day or a moment with its offset. Clocks may differ by a day; what lies further ahead is no date. */
function parseDate(text: string, now: number): Date | null | 'bad' {
  if (text === '') return null;
  // Date.parse takes 31 February for a day in March.
  const day = new Date(`${text.slice(0, 10)}T00:00:00Z`);
  const time = DATE.test(text) ? Date.parse(text) : Number.NaN;
  if (Number.isNaN(time) || Number.isNaN(day.getTime()) || !day.toISOString().startsWith(text.slice(0, 10)))
    return 'bad';
  return time - now >= DAY_MS ? 'bad' : new Date(Math.min(time, now));
}
