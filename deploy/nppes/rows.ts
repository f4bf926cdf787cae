import { hash } from 'node:crypto';
import { hasNpiCheckDigit } from '../../activities/person/npi.ts';
import { pacIdOf, providerKeys } from '../../db/providers/keys.ts';
import { ENDPOINT_KINDS } from '../../db/words.ts';
import columns from './columns.json' with { type: 'json' };
import { type CsvRecord, MAX_VALUE_LENGTH } from './csv.ts';
import { type FileKind, type Header, STATUS } from './layout.ts';

// Converts a row of a file to a line for COPY. The columns are those of the staging tables in
// db/providers/nppes/staging.ts.

/**
 * A row that cannot be imported. It keeps only the NPI, because rejects files are passed around.
 */
export interface Reject {
  readonly line: number;
  /** Null if it is not ten digits. */
  readonly npi: string | null;
  readonly reason: string;
}

type Rejected = Pick<Reject, 'reason'>;
type ParseKnown = (npi: string, record: CsvRecord) => string | Rejected;

/** Below PostgreSQL's limit for an index entry, 2704 bytes. */
const MAX_KEY_BYTES = 2_000;

/**
 * Returns the parser for rows of a kind of file, whose columns are where the header says.
 * @param asOf the day whose state the file contains
 * @param importNumber stored in the rows of providers; null if no rows are written
 */
export function rowParser(
  kind: FileKind,
  asOf: string,
  header: Header,
  importNumber: number | null,
) {
  const npiAt = header.at('NPI');
  const parse = PARSERS[kind](header, `${asOf}\tnppes\t${importNumber ?? '\\N'}`);
  /** Returns a line for COPY, or why the row is rejected. */
  return (record: CsvRecord): string | Reject => {
    const npi = record.text(npiAt);
    const problem = brokenBy(npi, record) ?? tooLong(header, record);
    if (problem !== null) return rejected(npi, record, problem);
    const parsed = parse(npi, record);
    if (typeof parsed === 'string') return parsed;
    return rejected(npi, record, parsed.reason);
  };
}

function rejected(npi: string, { line }: CsvRecord, reason: string): Reject {
  return { line, npi: isTenDigits(npi) ? npi : null, reason };
}

function brokenBy(npi: string, { whole }: CsvRecord): string | null {
  if (!whole) return 'wrong number of columns or a quote that is not closed';
  if (hasNpiCheckDigit(npi)) return null;
  return isTenDigits(npi) ? 'NPI has a wrong check digit' : 'NPI is not 10 digits';
}

/** Checks only the values that we read. Others may have any length. */
function tooLong({ read }: Header, record: CsvRecord): string | null {
  const column = read.find(([, place]) => record.isTooLong(place));
  if (column === undefined) return null;
  const [name] = column;
  return `${name} is longer than ${MAX_VALUE_LENGTH} characters`;
}

const PARSERS: Readonly<Record<FileKind, (header: Header, origin: string) => ParseKnown>> = {
  npidata: providerParser,
  othername: otherNameParser,
  pl: locationParser,
  endpoint: endpointParser,
  clinicians: clinicianParser,
};

/** Returns a function that reads the values of these columns. */
function reader(header: Header, names: readonly string[]) {
  const places = names.map(header.at);
  return (record: CsvRecord) => places.map((at) => kept(record.text(at)));
}

const DEACTIVE = 'deactive';
const STATUSES: readonly string[] = ['', 'active', 'soon_to_be_deactivated', DEACTIVE];

/** @param origin the values of `as_of`, `origin`, and `import_number` */
function providerParser(header: Header, origin: string): ParseKnown {
  const { texts, practice, dates } = columns.npidata;
  const textsOf = reader(header, texts);
  const practiceOf = reader(header, practice);
  const datesAt = dates.map(header.at);
  const statusAt = header.at(STATUS);
  return (npi, record) => {
    const values = textsOf(record);
    const [type = null] = values;
    const days = datesAt.map((at) => dateOf(record.text(at)));
    if (days.includes(undefined)) {
      return { reason: 'date is not MM/DD/YYYY, or not a day from 1900 to 2099' };
    }
    const [, deactivatedOn] = days;
    const status = kept(record.text(statusAt))?.toLowerCase() ?? '';
    if (!STATUSES.includes(status)) return { reason: 'unknown activation status' };
    if (type === null && deactivatedOn === null && status !== DEACTIVE) {
      return { reason: 'no entity type and no deactivation date' };
    }
    if (type !== null && type !== '1' && type !== '2') {
      return { reason: 'entity type is neither 1 nor 2' };
    }
    const place = practiceOf(record);
    const [line1 = null, line2 = null, , , postalCode = null, phone = null] = place;
    const { phoneKey, addressKey } = providerKeys({ phone, line1, line2, postalCode });
    const isDeactive = status === DEACTIVE ? 't' : null;
    const keys = [phoneKey, addressKey];
    const line = copyLine([npi, ...values, ...place, ...keys, ...days, isDeactive]);
    // 64 bits, read as PostgreSQL's signed bigint. SHA-1 is enough here, because the hash only
    // detects changed rows.
    const rowHash = hash('sha1', line, 'buffer').readBigInt64LE();
    return `${rowHash}\t${origin}\t${line}`;
  };
}

function otherNameParser(header: Header): ParseKnown {
  const valuesOf = reader(header, columns.othername.texts);
  return (npi, record) => {
    const [name = null, type = null] = valuesOf(record);
    if (name === null) return { reason: 'other name missing' };
    return keyed([npi, name, type], []);
  };
}

function locationParser(header: Header): ParseKnown {
  const placeOf = reader(header, columns.pl.place);
  return (npi, record) => {
    const place = placeOf(record);
    const [line1 = null, line2 = null, city = null, , postalCode = null, phone = null] = place;
    if (line1 === null && line2 === null && city === null) return { reason: 'address missing' };
    const { phoneKey, addressKey } = providerKeys({ phone, line1, line2, postalCode });
    return keyed([npi, ...place.slice(0, -1)], [phone, phoneKey, addressKey]);
  };
}

function endpointParser(header: Header): ParseKnown {
  const valuesOf = reader(header, columns.endpoint.texts);
  return (npi, record) => {
    const [type, endpoint = null, affiliation] = valuesOf(record);
    const kind = ENDPOINT_KINDS.find((one) => one === type?.toUpperCase());
    if (kind === undefined) return { reason: 'unknown endpoint type' };
    if (endpoint === null) return { reason: 'endpoint missing' };
    return keyed([npi, kind, endpoint], [affiliation]);
  };
}

/**
 * Keeps clinicians without a group too, for their place of work and because they may have left a
 * group.
 */
function clinicianParser(header: Header): ParseKnown {
  const groupOf = reader(header, ['org_pac_id', 'Facility Name', 'num_org_mem']);
  const placeOf = reader(header, ['adr_ln_1', 'adr_ln_2', 'ZIP Code', 'Telephone Number']);
  return (npi, record) => {
    const [group = null, name, members = null] = groupOf(record);
    const pacId = group === null ? '' : pacIdOf(group);
    if (pacId === null) return { reason: 'PAC id of the group is not a number of 10 digits' };
    if (members !== null && !/^[0-9]{1,9}$/.test(members)) {
      return { reason: 'number of members is not a number' };
    }
    const [line1 = null, line2 = null, postalCode = null, phone = null] = placeOf(record);
    const { phoneKey, addressKey } = providerKeys({ phone, line1, line2, postalCode });
    return keyed([npi, pacId, phoneKey, addressKey], [group === null ? null : name, members]);
  };
}

type Value = string | null | undefined;

/** Returns a line that begins with the table's key. Missing values of the key are empty. */
function keyed(key: readonly Value[], rest: readonly Value[]): string | Rejected {
  const filled = key.map((value) => value ?? '');
  if (Buffer.byteLength(filled.join('')) > MAX_KEY_BYTES) {
    return { reason: 'value longer than NPPES allows' };
  }
  return copyLine([...filled, ...rest]);
}

function isTenDigits(npi: string): boolean {
  return /^[0-9]{10}$/.test(npi);
}

// The meaning of values in NPPES's files, and their format for COPY.

const MASKED = /^(?:<unavail>|[$*=]{3,}|-{2,})$/i;
const CONTROL = /\p{Cc}/u;

/**
 * Returns the value to store: null if it is empty or masked, on one line, and without NUL, which
 * PostgreSQL cannot store.
 */
function kept(text: string): string | null {
  if (text === '') return null;
  const line = CONTROL.test(text) ? text.replaceAll('\0', '').replace(/\p{Cc}+/gu, ' ') : text;
  const value = line.trim();
  return value === '' || MASKED.test(value) ? null : value;
}

/**
 * Dates that were parsed before. A file has ten million dates, but only a few thousand different
 * days.
 */
const KNOWN_DATES = new Map<string, string>();

/**
 * Converts `MM/DD/YYYY` to `YYYY-MM-DD`.
 * @returns null for an empty value, undefined for an invalid date
 */
function dateOf(text: string): string | null | undefined {
  if (text === '') return null;
  const known = KNOWN_DATES.get(text);
  if (known !== undefined) return known;
  const value = kept(text);
  if (value === null) return null;
  const match = /^([0-9]{2})\/([0-9]{2})\/((?:19|20)[0-9]{2})$/.exec(value);
  if (match === null) return undefined;
  const [, month, day, year] = match;
  const date = `${year}-${month}-${day}`;
  if (!isDay(date)) return undefined;
  KNOWN_DATES.set(text, date);
  return date;
}

/**
 * Returns a line in COPY's text format. Only backslashes need escaping, because `kept` has removed
 * other special characters.
 */
function copyLine(values: readonly Value[]): string {
  return `${values.map(escaped).join('\t')}\n`;
}

function escaped(value: Value): string {
  if (value === null || value === undefined) return '\\N';
  return value.includes('\\') ? value.replaceAll('\\', '\\\\') : value;
}

/**
 * Returns whether `YYYY-MM-DD` is a day of the calendar. Date.parse would read 31 February as a day
 * in March.
 */
export function isDay(date: string): boolean {
  const day = new Date(`${date}T00:00:00Z`);
  return !Number.isNaN(day.getTime()) && day.toISOString().startsWith(date);
}
