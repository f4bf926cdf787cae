import { readdirSync, readFileSync } from 'node:fs';
import { domainToASCII } from 'node:url';
import type { EmailType } from '../../../db/words.ts';
import type { NppesValues } from '../../../deploy/local/sample.ts';
import { npi, personRow, writeMember } from '../nppes.ts';

// The addresses of test/traps/, and the people they are named for as NPPES would have them.

/** What a careful person does with an address. */
export type Opinion = 'return' | 'refuse';

/** Who names the address, and what they say of it. */
export type Naming =
  | {
      readonly by: 'rocketreach' | 'hunter';
      readonly says: 'valid' | 'catch_all' | 'unknown';
      /** How long ago it was seen to answer; absent: the vendor gives no date. */
      readonly days?: number;
      readonly type?: EmailType;
      /** Whom the vendor says it found, if that is not our name for the person. */
      readonly name?: string;
    }
  /** An endpoint of the person's, of this type. */
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
  /** The name of its file. */
  readonly kind: string;
  readonly npi: string;
  /** As it is named. */
  readonly email: string;
  readonly careful: Opinion;
  /** Of a careful person who has no verifier, if that is another. */
  readonly withoutVerifier?: Opinion;
  /** Of an address that is returned. */
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
  readonly named: readonly Naming[];
  /** What a verifier sees: a shared or a stranger's mailbox is valid. */
  readonly verifier: Mailbox;
  /** What name servers say of the domain, if it is not one exchanger with a public address. */
  readonly dns?:
    | 'nxdomain'
    | {
        readonly mx: readonly string[];
        readonly a?: readonly string[];
        /** Exchangers that have other addresses than a public one; without any they do not exist. */
        readonly hosts?: Readonly<Record<string, readonly string[]>>;
      };
}

interface Practice {
  readonly name: string;
  readonly city: string;
  readonly state: string;
  /** Null: NPPES does not tell it. */
  readonly domain: string | null;
}

const FOLDER = new URL('../../traps/', import.meta.url);
const read = <T>(file: string): readonly T[] => JSON.parse(readFileSync(new URL(file, FOLDER), 'utf8'));

export const PRACTICES = read<Practice>('practices.json');

/** Each with an NPI of its own. */
export const TRAPS: readonly Trap[] = readdirSync(FOLDER)
  .filter((file) => file !== 'practices.json')
  .flatMap((file) => {
    const kind = file.replace('.json', '').replaceAll('-', ' ');
    return read<Omit<Trap, 'kind' | 'npi'>>(file).map((trap) => ({ ...trap, kind }));
  })
  .map((trap, index) => ({ ...trap, npi: npi(40_000_000 + index) }));

/** One spelling of an address: lower case, its domain as name servers know it. */
export function spelled(email: string): string {
  const [local = '', domain = ''] = email.toLowerCase().split('@');
  return `${local}@${domainToASCII(domain.replace(/\.$/, ''))}`;
}

/** One spelling of a name, whoever writes it: letters alone. */
export function nameKey(...parts: readonly unknown[]): string {
  return parts
    .join('')
    .toLowerCase()
    .normalize('NFKD')
    .replace(/[^\p{L}]/gu, '');
}

/** Writes a download of NPPES with everybody in the set, for the real importer. */
export async function writeNppes(folder: string): Promise<void> {
  const places = new Map(PRACTICES.map((practice, index) => [practice.name, placeOf(practice, index)]));
  const organizations = PRACTICES.map(({ name }, index) => ({
    NPI: organizationNpi(index),
    'Entity Type Code': '2',
    'Provider Organization Name (Legal Business Name)': name.toUpperCase(),
    'Last Update Date': '01/15/2026',
    ...places.get(name),
  }));
  const people = TRAPS.map(({ npi: id, who, practice }) => {
    const place = places.get(practice);
    if (!place) throw new Error(`practices.json has no ${practice}`);
    return personRow(id, { ...rowOf(who), ...place });
  });
  const own = TRAPS.flatMap(({ npi: id, email, named }) =>
    named.flatMap((one) => (one.by === 'nppes' ? [endpointRow(id, one.as, email)] : [])),
  );
  const shared = PRACTICES.flatMap(({ domain }, index) =>
    domain === null ? [] : [endpointRow(organizationNpi(index), 'OTHERS', `records@${domain}`)],
  );
  await writeMember(folder, 'npidata', LAST_DAY, [...organizations, ...people]);
  await writeMember(folder, 'endpoint', LAST_DAY, [...own, ...shared]);
}

const LAST_DAY = '20261108';
const organizationNpi = (index: number) => npi(50_000_000 + index);

function placeOf({ city, state }: Practice, index: number): NppesValues {
  const at = 'Provider Business Practice Location Address';
  return {
    'Provider First Line Business Practice Location Address': `${200 + index} MAIN STREET`,
    [`${at} City Name`]: city.toUpperCase(),
    [`${at} State Name`]: state,
    [`${at} Postal Code`]: `${80_000 + index}1234`,
    [`${at} Telephone Number`]: `303555${String(1000 + index)}`,
  };
}

function rowOf({ first, last, middle = '', former = '', suffix = '', credential }: Trap['who']): NppesValues {
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
  return { NPI: id, 'Endpoint Type': type, Endpoint: endpoint, Affiliation: 'N', 'Use Code': 'OTHER' };
}
