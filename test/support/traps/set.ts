import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { domainToASCII, fileURLToPath } from 'node:url';
import type { EmailType } from '../../../db/words.ts';
import type { NppesValues } from '../../../deploy/local/sample.ts';
import { npi, personRow, writeMember } from '../nppes.ts';

// Reads sets of addresses and their people, as NPPES would list them.

/** A careful person's decision about an address. */
export type Opinion = 'return' | 'refuse';

/** The source that names the address, and its claims about it. */
export type Naming =
  | {
      readonly by: 'rocketreach' | 'hunter';
      readonly says: 'valid' | 'catch_all' | 'unknown';
      /** Days since the vendor saw the mailbox respond. Absent if the vendor gives no date. */
      readonly days?: number;
      readonly type?: EmailType;
      /** Name of the person that the vendor found, if it differs from our name for the person. */
      readonly name?: string;
    }
  /** An endpoint of this type in the person's NPPES record. */
  | { readonly by: 'nppes'; readonly as: 'DIRECT' | 'OTHERS' };

export type Mailbox =
  | 'valid'
  | 'catch_all'
  | 'role'
  | 'full'
  | 'disposable'
  | 'invalid'
  | 'disabled'
  | 'unknown';

export interface Trap {
  /** Name of its file. */
  readonly kind: string;
  readonly npi: string;
  /** The address as the sources spell it. */
  readonly email: string;
  /** The address to return, if the sources add something to it, such as `mailto:`. */
  readonly clean?: string;
  readonly careful: Opinion;
  /** Decision of a careful person without a verifier, if it differs. */
  readonly withoutVerifier?: Opinion;
  /** Type of an address that is returned. */
  readonly type?: EmailType;
  readonly why: string;
  readonly who: {
    readonly first: string;
    readonly last: string;
    readonly middle?: string;
    readonly former?: string;
    readonly suffix?: string;
    readonly credential: string;
  };
  readonly practice: string;
  /** The state in which another clinician with the same name practices. */
  readonly namesake?: string;
  readonly named: readonly Naming[];
  /** Response of a verifier. Shared mailboxes and mailboxes of strangers are valid. */
  readonly verifier: Mailbox;
  /** DNS records of the domain, if they differ from one exchanger with a public address. */
  readonly dns?:
    | 'nxdomain'
    | {
        readonly mx: readonly string[];
        readonly a?: readonly string[];
        /**
         * Exchangers whose addresses are not public. An exchanger with an empty list does not
         * exist.
         */
        readonly hosts?: Readonly<Record<string, readonly string[]>>;
      };
}

interface Practice {
  readonly name: string;
  readonly city: string;
  readonly state: string;
  /** Null if NPPES does not contain it. */
  readonly domain: string | null;
  /**
   * The form of the addresses that the directory has for three colleagues. A practice needs one if
   * `first.last` and `flast` of its traps are both right. Otherwise the first three that are found
   * would decide the pattern of the others.
   */
  readonly mailboxes?: keyof typeof WRITERS;
}

const WRITERS = {
  'first.last': (first: string, last: string) => `${first}.${last}`,
  firstlast: (first: string, last: string) => `${first}${last}`,
  flast: (first: string, last: string) => `${first.charAt(0)}${last}`,
};

const FOLDER = fileURLToPath(new URL('../../traps/', import.meta.url));

export const PRACTICES = readList<Practice>(join(FOLDER, 'practices.json'));

/**
 * Reads all sets of a folder, and gives each person an NPI.
 * @param folder its practices are those of test/traps/
 */
export function readTraps(folder = FOLDER): readonly Trap[] {
  const files = readdirSync(folder).filter(
    (file) => file.endsWith('.json') && file !== 'practices.json',
  );
  return files
    .flatMap((file) => {
      const kind = file.replace('.json', '').replaceAll('-', ' ');
      const set = readList<Omit<Trap, 'kind' | 'npi'>>(join(folder, file));
      return set.map((trap) => ({ ...trap, kind }));
    })
    .map((trap, index) => ({ ...trap, npi: npi(40_000_000 + index) }));
}

function readList<T>(file: string): readonly T[] {
  return JSON.parse(readFileSync(file, 'utf8'));
}

/** Returns the address that the service returns if it accepts the trap, normalized. */
export function addressOf({ email, clean }: Trap): string {
  return spelled(clean === undefined ? email : clean);
}

/** Normalizes an address: lowercase, with the domain as in DNS. */
export function spelled(email: string): string {
  const [local = '', domain = ''] = email.toLowerCase().split('@');
  return `${local}@${domainToASCII(domain.replace(/\.$/, ''))}`;
}

/** Normalizes a name from any source to its letters. */
export function nameKey(...parts: readonly unknown[]): string {
  return parts
    .join('')
    .toLowerCase()
    .normalize('NFKD')
    .replace(/[^\p{L}]/gu, '');
}

const COLLEAGUES = [
  { first: 'Olivia', last: 'Brandt', credential: 'MD' },
  { first: 'Peter', last: 'Castellano', credential: 'DO' },
  { first: 'Ruth', last: 'Dimitrov', credential: 'NP' },
] as const;

/** Returns the colleagues whose addresses the directory has, at all practices with `mailboxes`. */
export function colleagues() {
  return PRACTICES.flatMap(({ name: practice, domain, mailboxes }, index) => {
    if (mailboxes === undefined) return [];
    const write = WRITERS[mailboxes];
    return COLLEAGUES.map((who, n) => {
      const local = write(who.first, who.last).toLowerCase();
      const id = npi(60_000_000 + index * COLLEAGUES.length + n);
      return { npi: id, who, practice, email: `${local}@${domain}` };
    });
  });
}

/** Writes an NPPES download with the people of the traps, for the real importer. */
export async function writeNppes(traps: readonly Trap[], folder: string): Promise<void> {
  const places = new Map(
    PRACTICES.map((practice, index) => [practice.name, placeOf(practice, index)]),
  );
  const organizations = PRACTICES.map(({ name }, index) => ({
    NPI: organizationNpi(index),
    'Entity Type Code': '2',
    'Provider Organization Name (Legal Business Name)': name.toUpperCase(),
    'Last Update Date': '01/15/2026',
    ...places.get(name),
  }));
  const people = [...traps, ...colleagues()].map(({ npi: id, who, practice }) => {
    const place = places.get(practice);
    if (!place) throw new Error(`practices.json has no ${practice}`);
    return personRow(id, { ...rowOf(who), ...place });
  });
  const namesakes = traps.flatMap(({ who, namesake: state }, index) => {
    if (state === undefined) return [];
    const place = placeOf({ city: 'ELSEWHERE', state }, PRACTICES.length + index);
    return [personRow(npi(70_000_000 + index), { ...rowOf(who), ...place })];
  });
  const own = traps.flatMap(({ npi: id, email, named }) =>
    named.flatMap((one) => (one.by === 'nppes' ? [endpointRow(id, one.as, email)] : [])),
  );
  const shared = PRACTICES.flatMap(({ domain }, index) =>
    domain === null
      ? []
      : [endpointRow(organizationNpi(index), 'OTHERS', `records@${domain}`)],
  );
  await writeMember(folder, 'npidata', LAST_DAY, [
    ...organizations,
    ...people,
    ...namesakes,
  ]);
  await writeMember(folder, 'endpoint', LAST_DAY, [...own, ...shared]);
}

const LAST_DAY = '20261108';
const organizationNpi = (index: number) => npi(50_000_000 + index);

function placeOf(
  { city, state }: Pick<Practice, 'city' | 'state'>,
  index: number,
): NppesValues {
  const at = 'Provider Business Practice Location Address';
  return {
    'Provider First Line Business Practice Location Address': `${200 + index} MAIN STREET`,
    [`${at} City Name`]: city.toUpperCase(),
    [`${at} State Name`]: state,
    [`${at} Postal Code`]: `${80_000 + index}1234`,
    [`${at} Telephone Number`]: `303555${String(1000 + index)}`,
  };
}

function rowOf({
  first,
  last,
  middle = '',
  former = '',
  suffix = '',
  credential,
}: Trap['who']): NppesValues {
  return {
    'Provider First Name': first.toUpperCase(),
    'Provider Middle Name': middle.toUpperCase(),
    'Provider Last Name (Legal Name)': last.toUpperCase(),
    'Provider Other Last Name': former.toUpperCase(),
    'Provider Name Suffix Text': suffix.toUpperCase(),
    'Provider Credential Text': credential,
  };
}

function endpointRow(id: string, type: string, endpoint: string): NppesValues {
  return {
    NPI: id,
    'Endpoint Type': type,
    Endpoint: endpoint,
    Affiliation: 'N',
    'Use Code': 'OTHER',
  };
}
