import { DIRECT_ENDPOINTS } from './magic.ts';
import {
  personOf,
  SAMPLE_NPIS,
  SAMPLE_ORGANIZATIONS,
  type SimOrganization,
  type SimPerson,
} from './people.ts';

// What the sample's endpoint file holds, with the traps of the real one: Direct addresses that look like email,
// free mail typed as DIRECT, shared mailboxes, URLs.

/** One row of NPPES's endpoint file, before its columns are written out. */
export interface SimEndpoint {
  /** Of an individual or of an organization. */
  readonly npi: string;
  readonly type: 'DIRECT' | 'FHIR' | 'OTHERS';
  readonly endpoint: string;
  readonly use: 'DIRECT' | 'HIE' | 'OTHER';
  /** What the row names as the affiliation; null where it says N. */
  readonly affiliation: SimOrganization | null;
}

const ORDINARY = SAMPLE_NPIS.filter((npi) => npi.startsWith('21')).map(personOf);

/** Gave NPPES an ordinary address as a Direct one. */
export const FREE_MAIL_AS_DIRECT: SimEndpoint = freeMail();

/**
 * All endpoints of the sample: every ninth ordinary provider has a Direct address at a practice they are affiliated
 * with, every eleventh their practice's front desk, every thirteenth a URL; one has a free-mail address typed as
 * DIRECT; every fourth organization has a mailbox for records. Providers who are magic have none, but for the one
 * whose only address is a Direct one.
 */
export const SAMPLE_ENDPOINTS: readonly SimEndpoint[] = [
  ...DIRECT_ENDPOINTS.map(({ npi, endpoint }) => direct(npi, endpoint, null)),
  FREE_MAIL_AS_DIRECT,
  ...every(9, ORDINARY).map((one) => direct(one.npi, directAddress(one), one.organization)),
  ...every(11, ORDINARY).map((one) => mailbox(one.npi, `frontdesk@${one.organization.domain}`)),
  ...every(13, ORDINARY).map((one) => url(one.npi, one.organization.domain)),
  ...every(4, SAMPLE_ORGANIZATIONS).map((one) => mailbox(one.npi, `records@${one.domain}`)),
];

function every<T>(step: number, list: readonly T[]): T[] {
  return list.filter((_, index) => index % step === 0);
}

function direct(npi: string, endpoint: string, affiliation: SimOrganization | null): SimEndpoint {
  return { npi, type: 'DIRECT', endpoint, use: 'DIRECT', affiliation };
}

function directAddress({ workEmail }: SimPerson): string {
  return workEmail.replace('@', '@direct.');
}

function mailbox(npi: string, endpoint: string): SimEndpoint {
  return { npi, type: 'OTHERS', endpoint, use: 'OTHER', affiliation: null };
}

function url(npi: string, domain: string): SimEndpoint {
  return { npi, type: 'FHIR', endpoint: `https://fhir.${domain}/r4`, use: 'HIE', affiliation: null };
}

function freeMail(): SimEndpoint {
  const owner = ORDINARY.find(({ homeEmail }) => homeEmail.endsWith('@gmail.com'));
  if (owner === undefined) throw new RangeError('nobody in the sample has such an address');
  return direct(owner.npi, owner.homeEmail, null);
}
