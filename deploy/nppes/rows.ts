import { hash } from 'node:crypto';
import { hasNpiCheckDigit } from '../../activities/person/npi.ts';
import { pacIdOf, providerKeys } from '../../db/providers/keys.ts';
import { ENDPOINT_KINDS } from '../../db/words.ts';
import columns from './columns.json' with { type: 'json' };
import type { CsvRecord } from './csv.ts';
import type { FileKind, Header, MemberKind } from './layout.ts';

// From a row of a file to a line of COPY: the columns are those of the staging tables in db/providers/nppes/staging.ts.

/** A row that cannot be imported. Only its NPI is told: a rejects file is sent around. */
export interface Reject {
  readonly line: number;
  /** Null if it is not ten digits. */
  readonly npi: string | null;
  readonly reason: string;
}

type Rejected = Pick<Reject, 'reason'>;

/** PostgreSQL's longest index entry is 2704 bytes. */
const KEY_BYTES_AT_MOST = 2_000;

const GROUP_TEXTS = ['org_pac_id', 'Facility Name', 'num_org_mem'];
const CLINICIAN_PLACE = ['adr_ln_1', 'adr_ln_2', 'ZIP Code', 'Telephone Number'];

/** The columns without which a file cannot be read. */
export function neededOf(kind: MemberKind): string[] {
  return ['NPI', ...Object.values(columns[kind]).flat()];
}

/**
 * How rows of a kind of file are read, their columns being where the header says.
 * @param asOf the day whose state the file is
 */
export function rowParser(kind: FileKind, asOf: string, header: Header) {
  const npiAt = header.at('NPI');
  const parse = PARSERS[kind](header, asOf);
  /** A line for COPY, or why there is none. */
  return (record: CsvRecord): string | Rejected => {
    if (!record.whole) return rejected('wrong number of columns or a quote that is not closed');
    const npi = record.text(npiAt);
    if (hasNpiCheckDigit(npi)) return parse(npi, record);
    return rejected(isTenDigits(npi) ? 'NPI has a wrong check digit' : 'NPI is not 10 digits');
  };
}

/** The NPI of a row that was rejected. */
export function npiOf(record: CsvRecord, header: Header): string | null {
  const npi = record.text(header.at('NPI'));
  return isTenDigits(npi) ? npi : null;
}

type ParseKnown = (npi: string, record: CsvRecord) => string | Rejected;

const PARSERS: Readonly<Record<FileKind, (header: Header, asOf: string) => ParseKnown>> = {
  npidata: providerParser,
  othername: otherNameParser,
  pl: locationParser,
  endpoint: endpointParser,
  clinicians: clinicianParser,
};

/** Whether an NPI is in service, in V3; V2 has the dates alone. */
const STATUS = 'npi_activation_status';
const DEACTIVE = 'deactive';
const STATUSES: readonly string[] = ['', 'active', 'soon_to_be_deactivated', DEACTIVE];

function providerParser(header: Header, asOf: string): ParseKnown {
  const { type: types, texts, practice: places, dates } = columns.npidata;
  const [typeAt = 0] = types.map(header.at);
  const textsAt = texts.map(header.at);
  const practiceAt = places.map(header.at);
  const datesAt = dates.map(header.at);
  const statusAt = header.has(STATUS) ? header.at(STATUS) : null;
  return (npi, record) => {
    const type = record.text(typeAt);
    const [updatedOn, deactivatedOn, reactivatedOn] = datesAt.map((at) => dateOf(record.text(at)));
    if (updatedOn === undefined || deactivatedOn === undefined || reactivatedOn === undefined) {
      return rejected('date is not MM/DD/YYYY, or no day from 1900 to 2099');
    }
    const status = (statusAt === null ? null : kept(record.text(statusAt)))?.toLowerCase() ?? '';
    if (!STATUSES.includes(status)) return rejected('unknown activation status');
    if (type === '' && deactivatedOn === null && status !== DEACTIVE) {
      return rejected('no entity type and no deactivation date');
    }
    if (type !== '' && type !== '1' && type !== '2') return rejected('entity type is neither 1 nor 2');
    const practice = practiceAt.map((at) => kept(record.text(at)));
    const [line1 = null, line2 = null, , , postalCode = null, phone = null] = practice;
    const { phoneKey, addressKey } = providerKeys({ phone, line1, line2, postalCode });
    const line = copyLine([
      npi,
      type === '' ? null : type,
      ...textsAt.map((at) => kept(record.text(at))),
      ...practice,
      phoneKey,
      addressKey,
      updatedOn,
      deactivatedOn,
      reactivatedOn,
      status === DEACTIVE ? 't' : null,
    ]);
    return `${rowHash(line)}\t${asOf}\tnppes\t${line}`;
  };
}

function otherNameParser(header: Header): ParseKnown {
  const [nameAt = 0, typeAt = 0] = columns.othername.texts.map(header.at);
  return (npi, record) => {
    const name = kept(record.text(nameAt));
    if (name === null) return rejected('other name missing');
    return keyed([npi, name, kept(record.text(typeAt)) ?? ''], []);
  };
}

function locationParser(header: Header): ParseKnown {
  const placeAt = columns.pl.place.map(header.at);
  return (npi, record) => {
    const place = placeAt.map((at) => kept(record.text(at)) ?? '');
    const [line1 = '', line2 = '', city = '', state = '', postalCode = '', number = ''] = place;
    if (line1 === '' && line2 === '' && city === '') return rejected('address missing');
    const phone = number || null;
    const { phoneKey, addressKey } = providerKeys({ phone, line1, line2, postalCode });
    return keyed([npi, line1, line2, city, state, postalCode], [phone, phoneKey, addressKey]);
  };
}

function endpointParser(header: Header): ParseKnown {
  const [kindAt = 0, endpointAt = 0, affiliationAt = 0] = columns.endpoint.texts.map(header.at);
  return (npi, record) => {
    const typed = record.text(kindAt).trim().toUpperCase();
    const kind = ENDPOINT_KINDS.find((one) => one === typed);
    if (kind === undefined) return rejected('unknown endpoint type');
    const endpoint = kept(record.text(endpointAt));
    if (endpoint === null) return rejected('endpoint missing');
    return keyed([npi, kind, endpoint], [kept(record.text(affiliationAt))]);
  };
}

/** Who bills for no group is kept too: where they work, and that they have left the group they had. */
function clinicianParser(header: Header): ParseKnown {
  const [groupAt = 0, nameAt = 0, membersAt = 0] = GROUP_TEXTS.map(header.at);
  const placeAt = CLINICIAN_PLACE.map(header.at);
  return (npi, record) => {
    const group = kept(record.text(groupAt)) ?? '';
    const pacId = group === '' ? '' : pacIdOf(group);
    if (pacId === null) return rejected('PAC id of the group is not a number of 10 digits');
    const members = kept(record.text(membersAt));
    if (members !== null && !/^[0-9]{1,9}$/.test(members))
      return rejected('number of members is not a number');
    const [line1 = null, line2 = null, postalCode = null, phone = null] = placeAt.map((at) =>
      kept(record.text(at)),
    );
    const { phoneKey, addressKey } = providerKeys({ phone, line1, line2, postalCode });
    const name = pacId === '' ? null : kept(record.text(nameAt));
    return keyed([npi, pacId, phoneKey ?? '', addressKey ?? ''], [name, members]);
  };
}

/** A line whose first values are the table's key. */
function keyed(key: readonly string[], rest: readonly (string | null)[]): string | Rejected {
  if (key.reduce((bytes, value) => bytes + Buffer.byteLength(value), 0) > KEY_BYTES_AT_MOST) {
    return rejected('value longer than NPPES allows');
  }
  return copyLine([...key, ...rest]);
}

/** 64 bits as PostgreSQL's signed bigint. Not for secrets: it tells a changed row from an unchanged one. */
function rowHash(line: string): bigint {
  return hash('sha1', line, 'buffer').readBigInt64LE();
}

function rejected(reason: string): Rejected {
  return { reason };
}

function isTenDigits(npi: string): boolean {
  return /^[0-9]{10}$/.test(npi);
}

// What a value of NPPES's files means, and how COPY wants it.

const MASKED = /^(?:<unavail>|[$*=]{3,}|-{2,})$/i;
const CONTROL = /\p{Cc}/u;

/** A value as it is kept: null if it is empty or masked; on one line, without NUL, which PostgreSQL cannot hold. */
function kept(text: string): string | null {
  if (text === '') return null;
  const line = CONTROL.test(text) ? text.replaceAll('\0', '').replace(/\p{Cc}+/gu, ' ') : text;
  const value = line.trim();
  return value === '' || MASKED.test(value) ? null : value;
}

/** Dates that were read before: a file has ten million of them, and a few thousand days. */
const KNOWN_DATES = new Map<string, string>();

/** `MM/DD/YYYY` as `YYYY-MM-DD`. @returns null for no date at all; undefined for what isn't one */
function dateOf(text: string): string | null | undefined {
  if (text === '') return null;
  const known = KNOWN_DATES.get(text);
  if (known !== undefined) return known;
  const value = kept(text);
  if (value === null) return null;
  const [, month = '', day = '', year = ''] =
    /^([0-9]{2})\/([0-9]{2})\/((?:19|20)[0-9]{2})$/.exec(value) ?? [];
  const date = `${year}-${month}-${day}`;
  if (!isDay(date)) return undefined;
  KNOWN_DATES.set(text, date);
  return date;
}

/** One line of COPY's text format; `kept` has left only the backslash to escape. */
function copyLine(values: readonly (string | null)[]): string {
  let line = '';
  for (const value of values) {
    if (line !== '') line += '\t';
    if (value === null) line += '\\N';
    else line += value.includes('\\') ? value.replaceAll('\\', '\\\\') : value;
  }
  return `${line}\n`;
}

/** Whether `YYYY-MM-DD` is a day; Date.parse takes 31 February for one in March. */
export function isDay(date: string): boolean {
  const day = new Date(`${date}T00:00:00Z`);
  return !Number.isNaN(day.getTime()) && day.toISOString().startsWith(date);
}
