import { type Behaviour, home, PRACTICE_DOMAINS, type SimulatedEmail, work } from './simulator-people.ts';

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
  stored('2000000051', 'avery.lindqvist@harborfamilymedicine-sim.com', 0),
  stored('2000000069', 'noor.castellano@lakesidepediatrics-sim.com', 40),
  stored('2000000077', `tomas.ferreira@${CLOSED_DOMAIN}`, 40),
];

/** A magic NPI: what it shows, in a few words for people, and how the vendor treats it. */
export interface Magic {
  readonly about: string;
  readonly behaviour: Behaviour;
}

export const MAGIC: ReadonlyMap<string, Magic> = new Map([
  found('2000000010', 'professional, at once', [work('rowan.ashdown')], { latencyMs: 0 }),
  found('2000000028', 'personal only', [home('2000000028')]),
  found('2000000036', 'both types', [work('imani.bellweather'), home('2000000036')]),
  refused('2000000044', 'nobody', 404),
  found('2000000051', 'stored, fresh', [work('avery.lindqvist', 'harborfamilymedicine-sim.com')]),
  found('2000000069', 'stored, stale, still good', [work('noor.castellano', 'lakesidepediatrics-sim.com')]),
  found('2000000077', 'stored, stale, dead; a new one', [work('tomas.ferreira', PRACTICE_DOMAINS[4])]),
  refused('2000000085', 'deactivated', 404),
  refused('2000000093', 'an organization', 404),
  ['2000000101', { about: 'the vendor never answers', behaviour: { kind: 'hang' } }],
  refused('2000000119', 'the vendor fails', 500),
  [
    '2000000127',
    { about: 'rate limited, then found', behaviour: { kind: 'limited_once', profile: limited() } },
  ],
  found('2000000135', 'catch-all only', [{ ...work('piotr.vasquez'), smtpValid: 'accept-all', grade: 'B' }]),
  found('2000000143', 'inconclusive at first, then valid', [work('greta.oyelaran')], {
    unfinished: ['progress', 'progress'],
  }),
  found('2000000150', 'a Direct address only', [work('sunil.harrow', DIRECT_DOMAIN)]),
  found('2000000168', 'somebody else', [work('edda.kowalczyk')], { npi: '2000000010' }),
  refused('2000000176', 'asked not to be processed', 451),
  found('2000000184', 'suppressed', [work('marcus.delacroix')]),
]);

type Found = Extract<Behaviour, { kind: 'profile' }>;

function found(
  npi: string,
  about: string,
  emails: readonly SimulatedEmail[],
  rest: Partial<Found> = {},
): [string, Magic] {
  return [
    npi,
    { about, behaviour: { kind: 'profile', latencyMs: 300, npi, emails, unfinished: [], ...rest } },
  ];
}

function limited(): Found {
  return {
    kind: 'profile',
    latencyMs: 300,
    npi: '2000000127',
    emails: [work('leona.marchetti')],
    unfinished: [],
  };
}

function refused(npi: string, about: string, status: 404 | 451 | 500): [string, Magic] {
  return [npi, { about, behaviour: { kind: 'refusal', latencyMs: 300, status } }];
}

function stored(npi: string, email: string, daysAgo: number): StoredEmail {
  return { npi, email, type: 'professional', validatedAgoMs: daysAgo * DAY_MS };
}
