import { hash } from 'node:crypto';
import { pacIdOf, providerKeys } from '../../db/providers/keys.ts';
import { hasNpiCheckDigit } from '../../db/providers/npi.ts';
import { ENDPOINT_KINDS } from '../../db/words.ts';
import { isDay } from '../config/values.ts';
import columns from './columns.json' with { type: 'json' };
import { type CsvRecord, MAX_VALUE_LENGTH } from './csv.ts';
import { type FileKind, type Header, STATUS, TAXONOMIES } from './layout.ts';

// Converts the rows of a file to lines for COPY. Each line has the columns of a staging table in
// db/providers/nppes/staging.ts.

/**
 * A row that cannot be imported. It contains no values except the NPI, because operators share the
 * files with rejected rows.
 */
export interface Reject {
  readonly line: number;
  /** Null if the row has no NPI of ten digits. */
  readonly npi: string | null;
  readonly reason: string;
}

type Rejected = Pick<Reject, 'reason'>;
type ParseKnown = (npi: string, record: CsvRecord) => string | Rejected;

/** Maximum size of the key of a row. PostgreSQL's limit for an index entry is 2704 bytes. */
const MAX_KEY_BYTES = 2_000;

/**
 * Returns a function that parses the rows of a file with this kind and header.
 * @param asOf the last day that the file covers
 * @param importNumber number to store in the rows of providers. Null if no rows are written
 */
export function rowParser(
  kind: FileKind,
  asOf: string,
  header: Header,
  importNumber: number | null,
) {
  const npiAt = header.at('NPI');
  const parse = PARSERS[kind](header, `${asOf}\tnppes\t${importNumber ?? '\\N'}`);
  /** Returns a line for COPY, or a `Reject` with the reason. */
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
  if (!whole) {
    return 'wrong number of columns or a quote that is not closed';
  }
  if (hasNpiCheckDigit(npi)) return null;
  if (isTenDigits(npi)) return 'NPI has a wrong check digit';
  return 'NPI is not 10 digits';
}

/**
 * Returns the reason to reject a row with a value that is too long, or null. Columns that we don't
 * read may have any length.
 */
function tooLong({ read }: Header, record: CsvRecord): string | null {
  const column = read.find(([, place]) => record.isTooLong(place));
  if (column === undefined) return null;
  const [name] = column;
  return `${name} is longer than ${MAX_VALUE_LENGTH} characters`;
}

const PARSERS: Readonly<
  Record<FileKind, (header: Header, origin: string) => ParseKnown>
> = {
  npidata: providerParser,
  othername: otherNameParser,
  pl: locationParser,
  endpoint: endpointParser,
  clinicians: clinicianParser,
};

/** Returns a function that returns a row's values in these columns. */
function reader(header: Header, names: readonly string[]) {
  const places = names.map(header.at);
  return (record: CsvRecord) => places.map((at) => kept(record.text(at)));
}

const DEACTIVE = 'deactive';
const STATUSES: readonly string[] = ['', 'active', 'soon_to_be_deactivated', DEACTIVE];

/**
 * @param origin the values of the columns `as_of`, `origin`, and `import_number`, separated by tabs
 */
function providerParser(header: Header, origin: string): ParseKnown {
  const { texts, practice, dates } = columns.npidata;
  const textsOf = reader(header, texts);
  const practiceOf = reader(header, practice);
  const datesAt = dates.map(header.at);
  const statusAt = header.at(STATUS);
  const taxonomyOf = taxonomyReader(header);
  return (npi, record) => {
    const values = textsOf(record);
    const [type = null] = values;
    const days = datesAt.map((at) => dateOf(record.text(at)));
    if (days.includes(undefined)) {
      return { reason: 'date is not MM/DD/YYYY, or not a day from 1900 to 2099' };
    }
    const [, deactivatedOn] = days;
    const status = kept(record.text(statusAt))?.toLowerCase() ?? '';
    if (!STATUSES.includes(status)) {
      return { reason: 'unknown activation status' };
    }
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
    const taxonomy = type === '1' ? taxonomyOf(record) : null;
    const facts = [...values, ...place, ...keys, ...days, isDeactive, taxonomy];
    const line = copyLine([npi, ...facts]);
    // The hash has 64 bits, which are stored as a bigint. SHA-1 is good enough, because the hash
    // only detects changed rows.
    const rowHash = hash('sha1', line, 'buffer').readBigInt64LE();
    return `${rowHash}\t${origin}\t${line}`;
  };
}

const TAXONOMY = /^[0-9A-Z]{10}$/;

/**
 * Returns a function that returns the code of a row's primary taxonomy, or of the first one if none
 * is primary. Usually the first one is primary, so the other columns are rarely read.
 */
function taxonomyReader(header: Header) {
  const places = TAXONOMIES.map(({ code, isPrimary }) => ({
    code: header.at(code),
    isPrimary: header.at(isPrimary),
  }));
  return (record: CsvRecord): string | null => {
    const codeAt = (place: number) => {
      const code = record.text(place).trim();
      return TAXONOMY.test(code) ? code : null;
    };
    const primary = places.find(({ isPrimary }) => record.text(isPrimary) === 'Y');
    if (primary) return codeAt(primary.code);
    const first = places.find(({ code }) => codeAt(code) !== null);
    return first ? codeAt(first.code) : null;
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
    const [line1 = null, line2 = null, city = null, , postalCode = null, phone = null] =
      place;
    if (line1 === null && line2 === null && city === null) {
      return { reason: 'address missing' };
    }
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
 * Returns a parser for the rows of "Doctors and Clinicians". A row without a group is imported too.
 * It still has a workplace, and it may show that the clinician has left a group.
 */
function clinicianParser(header: Header): ParseKnown {
  const groupOf = reader(header, ['org_pac_id', 'Facility Name', 'num_org_mem']);
  const placeOf = reader(header, [
    'adr_ln_1',
    'adr_ln_2',
    'ZIP Code',
    'Telephone Number',
  ]);
  return (npi, record) => {
    const [group = null, name, members = null] = groupOf(record);
    const pacId = group === null ? '' : pacIdOf(group);
    if (pacId === null) {
      return { reason: 'PAC id of the group is not a number of 10 digits' };
    }
    if (members !== null && !/^[0-9]{1,9}$/.test(members)) {
      return { reason: 'number of members is not a number' };
    }
    const [line1 = null, line2 = null, postalCode = null, phone = null] = placeOf(record);
    const { phoneKey, addressKey } = providerKeys({ phone, line1, line2, postalCode });
    return keyed(
      [npi, pacId, phoneKey, addressKey],
      [group === null ? null : name, members],
    );
  };
}

type Value = string | null | undefined;

/**
 * Returns a line that begins with the values of the table's key. A missing value of the key becomes
 * an empty text, because a key cannot contain null.
 */
function keyed(key: readonly Value[], rest: readonly Value[]): string | Rejected {
  const filled = key.map((value) => value ?? '');
  if (Buffer.byteLength(filled.join('')) > MAX_KEY_BYTES) {
    return { reason: 'values are longer than NPPES allows' };
  }
  return copyLine([...filled, ...rest]);
}

function isTenDigits(npi: string): boolean {
  return /^[0-9]{10}$/.test(npi);
}

// The functions below convert values in NPPES's files to values for COPY.

const MASKED = /^(?:<unavail>|[$*=]{3,}|-{2,})$/i;
const CONTROL = /\p{Cc}/u;

function onOneLine(text: string): string {
  return text.replaceAll('\0', '').replace(/\p{Cc}+/gu, ' ');
}

/**
 * Returns the value to store. An empty or masked value becomes null. Line breaks and other control
 * characters become spaces. NUL characters are removed, because PostgreSQL cannot store them.
 */
function kept(text: string): string | null {
  if (text === '') return null;
  const value = CONTROL.test(text) ? onOneLine(text).trim() : text.trim();
  if (value === '' || MASKED.test(value)) return null;
  return value;
}

/** Cache of parsed dates. A file has ten million dates, but only a few thousand different ones. */
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
 * Returns a line in the text format of COPY. Only backslashes need escaping, because `kept` has
 * removed tabs and line breaks.
 */
function copyLine(values: readonly Value[]): string {
  return `${values.map(escaped).join('\t')}\n`;
}

function escaped(value: Value): string {
  if (value === null || value === undefined) return '\\N';
  if (!value.includes('\\')) return value;
  return value.replaceAll('\\', '\\\\');
}
