import { isRole } from '../../../activities/verification/looks.ts';
import { type Behaviour, fullName, home, type SimulatedEmail, work } from './behaviours.ts';
import { MAGIC_ORGANIZATION_NPI } from './organizations.ts';
import { FREE_MAIL_DOMAINS, PRACTICE_DOMAINS, personOf } from './people.ts';

// NPIs that behave in a set way in the local stack and in tests. All have a right check digit and lie in the row
// of NPIs beginning with 2, which is not being assigned.

/** A practice's Direct messaging host. */
export const DIRECT_DOMAIN = 'direct.cedarvalleyclinic-sim.com';
/** The domain of a practice that has closed and says that it takes no mail. */
export const CLOSED_DOMAIN = 'closedpractice-sim.com';

const DAY_MS = 86_400_000;

/** What the local stack puts into its directory before it starts. */
export interface StoredEmail {
  readonly npi: string;
  readonly email: string;
  readonly type: 'professional';
  /** When it was last validated, in milliseconds before now. */
  readonly validatedAgoMs: number;
}

export const STORED_EMAILS: readonly StoredEmail[] = [
  stored('2000000051', personOf('2000000051').workEmail, 0),
  stored('2000000069', personOf('2000000069').workEmail, 40),
  stored('2000000077', `tomas.ferreira@${CLOSED_DOMAIN}`, 40),
];

/** Who must not be looked up: the local stack suppresses them before it starts. */
export const SUPPRESSED_NPIS: readonly string[] = ['2000000184'];
/** In the sample of NPPES, and deactivated there. */
export const DEACTIVATED_NPIS: readonly string[] = ['2000000085'];
/** In the sample of NPPES as an organization. */
export const ORGANIZATION_NPIS: readonly string[] = [MAGIC_ORGANIZATION_NPI];
/** Who has an address in NPPES's endpoint file that looks like email and is a Direct one. */
export const DIRECT_ENDPOINTS: readonly { readonly npi: string; readonly endpoint: string }[] = [
  { npi: '2000000150', endpoint: `sunil.harrow@${DIRECT_DOMAIN}` },
];

/** A vendor that is asked by name and employer. */
export type FinderId = 'fullenrich' | 'prospeo' | 'hunter';

/** What such a vendor does about a magic NPI; `somebody_else` is an answer with the name of another person. */
export type MagicFinding = 'found' | 'somebody_else' | 'opted_out';

/** A magic NPI: what it shows, in a few words for people, and how each vendor treats it. */
export interface Magic {
  readonly about: string;
  readonly rocketreach: Behaviour;
  /** The vendors not named know nobody. */
  readonly finders: Readonly<Partial<Record<FinderId, MagicFinding>>>;
}

export const MAGIC: ReadonlyMap<string, Magic> = new Map([
  found('2000000010', 'professional, at once', { latencyMs: 0 }),
  found('2000000028', 'personal only', { emails: [home('2000000028')] }),
  found('2000000036', 'both types', { emails: [ownWork('2000000036'), home('2000000036')] }),
  unknown('2000000044', 'nobody'),
  found('2000000051', 'stored, fresh'),
  found('2000000069', 'stored, stale, still good'),
  found('2000000077', 'stored, stale, dead; a new one'),
  unknown('2000000085', 'deactivated'),
  unknown('2000000093', 'an organization'),
  magic('2000000101', 'the first vendor never answers', { kind: 'hang' }),
  magic('2000000119', 'the first vendor fails, the second finds', refusal(500), { fullenrich: 'found' }),
  magic('2000000127', 'rate limited, then found', { kind: 'limited_once', profile: profile('2000000127') }),
  found('2000000135', 'catch-all only', {
    emails: [{ ...ownWork('2000000135'), smtpValid: 'accept-all', grade: 'B' }],
  }),
  found('2000000143', 'not verified by the vendor; greylisted, then valid', {
    emails: [{ ...ownWork('2000000143'), smtpValid: 'inconclusive', grade: 'B-' }],
    unfinished: ['progress', 'progress'],
  }),
  found('2000000150', 'a Direct address only', { emails: [work('sunil.harrow', DIRECT_DOMAIN)] }),
  found('2000000168', 'somebody else', {
    emails: [work('edda.kowalczyk')],
    npi: '2000000010',
    name: 'Edda Kowalczyk',
  }),
  unknown('2000000176', 'asked the last vendor not to be processed', { hunter: 'opted_out' }),
  found('2000000184', 'suppressed'),
  unknown('2000000192', 'found by FullEnrich only', { fullenrich: 'found' }),
  unknown('2000000200', 'found by Prospeo only', { prospeo: 'found' }),
  unknown('2000000218', 'found by Hunter only', { hunter: 'found' }),
  unknown('2000000226', 'somebody else at FullEnrich, found by Hunter', {
    fullenrich: 'somebody_else',
    hunter: 'found',
  }),
]);

/** What there is at an address, for the simulated verifiers; `greylisted_once` is asked to come back, then `ok`. */
export type Mailbox = 'ok' | 'missing' | 'catch_all' | 'greylisted_once' | 'full' | 'role' | 'unknown';

const MAGIC_MAILBOXES: ReadonlyMap<string, Mailbox> = new Map([
  [personOf('2000000135').workEmail, 'catch_all'],
  [personOf('2000000143').workEmail, 'greylisted_once'],
]);
/** First parts of local parts that make a mailbox so, at any domain of a practice: `full.jones@…`. */
const MAGIC_PREFIXES: ReadonlyMap<string, Mailbox> = new Map([
  ['missing', 'missing'],
  ['catchall', 'catch_all'],
  ['greylisted', 'greylisted_once'],
  ['full', 'full'],
  ['unknown', 'unknown'],
]);
const CLOSED_DOMAINS: ReadonlySet<string> = new Set([CLOSED_DOMAIN, DIRECT_DOMAIN]);
const OPEN_DOMAINS: ReadonlySet<string> = new Set([...PRACTICE_DOMAINS, ...FREE_MAIL_DOMAINS]);

/** @param email in any case; of a domain that is not of this world nothing is known */
export function mailboxOf(email: string): Mailbox {
  const address = email.toLowerCase();
  const [local = '', domain = ''] = address.split('@');
  if (CLOSED_DOMAINS.has(domain)) return 'missing';
  if (!OPEN_DOMAINS.has(domain)) return 'unknown';
  if (isRole(local)) return 'role';
  return MAGIC_MAILBOXES.get(address) ?? MAGIC_PREFIXES.get(local.split('.')[0] ?? '') ?? 'ok';
}

type Profile = Extract<Behaviour, { kind: 'profile' }>;

function magic(
  npi: string,
  about: string,
  rocketreach: Behaviour,
  finders: Magic['finders'] = {},
): [string, Magic] {
  return [npi, { about, rocketreach, finders }];
}

function found(npi: string, about: string, rest: Partial<Profile> = {}): [string, Magic] {
  return magic(npi, about, { ...profile(npi), ...rest });
}

function unknown(npi: string, about: string, finders: Magic['finders'] = {}): [string, Magic] {
  return magic(npi, about, refusal(404), finders);
}

function profile(npi: string): Profile {
  const name = fullName(personOf(npi));
  return { kind: 'profile', latencyMs: 300, npi, name, emails: [ownWork(npi)], unfinished: [] };
}

function refusal(status: 404 | 500): Behaviour {
  return { kind: 'refusal', latencyMs: 300, status };
}

function ownWork(npi: string): SimulatedEmail {
  const [local = '', domain = ''] = personOf(npi).workEmail.split('@');
  return work(local, domain);
}

function stored(npi: string, email: string, daysAgo: number): StoredEmail {
  return { npi, email, type: 'professional', validatedAgoMs: daysAgo * DAY_MS };
}
