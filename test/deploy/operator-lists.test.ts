import test from 'ava';
import { issueKey } from '../../db/accounts/keys.ts';
import { addSuppression } from '../../db/privacy/suppressions.ts';
import { setBlock } from '../../db/webhooks/blocks.ts';
import manifest from '../../package.json' with { type: 'json' };
import { freshDatabase } from '../support/database.ts';
import { operatorOn, WHY } from '../support/operator.ts';
import {
  openOrganization,
  openTestKey,
  submitAccepted,
} from '../support/organization.ts';
import { storeEmail } from '../support/stored.ts';

// Tests behavior that all commands share: organizations by name, limits of lists, and the width of
// the terminal.

const { db, sql, url } = freshDatabase(test);
const { operator, text, json } = operatorOn(url);
const BY = { actor: 'tester', reason: 'a test' };

async function createOrg(name: string): Promise<string> {
  return (await json<{ id: string }>('org', 'create', name, ...WHY)).id;
}

test("operator commands accept an organization's name, or the start of it, as its id", async (t) => {
  const id = await createOrg('Northwind Health');
  const eastern = await createOrg('Northwind Health East');
  for (const name of ['Northwind Health', 'northwind health', ' NORTHWIND HEALTH ']) {
    t.is((await json('org', 'show', name)).id, id, name);
  }
  t.is((await json('org', 'show', 'northwind health e')).id, eastern);
  const bought = ['7', '--reference', 'x', ...WHY];
  t.like(await json('credits', 'grant', 'northwind health e', ...bought), {
    organization_id: eastern,
  });
  t.is((await json<unknown[]>('credits', 'ledger', 'Northwind Health East')).length, 1);
  t.true(
    (await json<{ action: string }[]>('audit', 'list', 'Northwind Health East')).length >
      1,
  );
  t.deepEqual(await json('webhooks', 'list', '--organization', 'Northwind Health'), []);
  t.deepEqual(await json('batch', 'list', '--organization', 'northwind health e'), []);
  t.like((await json<object[]>('usage', '--organization', 'Northwind Health East'))[0], {
    granted: 7,
  });
});

test('an ambiguous organization name is an error that lists all matches', async (t) => {
  const ids = [
    await createOrg('Twin Clinics'),
    await createOrg('Twin Clinics'),
    await createOrg('Twin Peaks'),
  ];
  for (const [name, candidates] of [
    ['twin clinics', ids.slice(0, 2)],
    ['twin', ids],
  ] as const) {
    const { code, stdout, stderr } = await operator(
      'credits',
      'grant',
      name,
      '5',
      '--reference',
      'x',
      ...WHY,
    );
    t.deepEqual([code, stdout], [1, ''], name);
    const listed = stderr.match(/org_\w+ \(Twin \w+\)/g) ?? [];
    t.deepEqual(
      listed.map((one) => one.slice(0, 30)).sort(),
      [...candidates].sort(),
      name,
    );
  }
  for (const id of ids) t.like(await json('org', 'show', id), { balance: { total: 0 } });
});

test('an empty name, a wildcard, or an unknown name matches no organization', async (t) => {
  await createOrg('Lonely Practice');
  for (const name of ['', '   ', '%', 'Lonely_Practice', 'ely Practice', 'Nobody']) {
    const bought = [name, '5', '--reference', 'x', ...WHY];
    const { code, stderr } = await operator('credits', 'grant', ...bought);
    t.is(code, 1, name);
    t.regex(
      stderr,
      /^operator: unknown organization \(an id looks like org_\w+\); "org list"/,
      name,
    );
  }
});

test('a name that a sandbox shares finds the live organization, and the id finds the sandbox', async (t) => {
  const live = await openOrganization(db, 0);
  await sql`update organizations set name = 'Sandy Shores' where id = ${live.organizationId}`;
  const { organizationId: sandbox } = await openTestKey(db, live);
  t.is((await json('org', 'show', sandbox)).name, 'Sandy Shores');
  t.is((await json('org', 'show', 'Sandy Shores')).id, live.organizationId);
});

test.serial(
  'every list of the operator is newest first and accepts --limit and --since',
  async (t) => {
    const organization = await openOrganization(db, 10);
    const { organizationId: id, keyId } = organization;
    const webhook = { url: 'https://hooks.example/', mode: 'batch' } as const;
    for (const npi of ['2000000202', '2000000210', '2000000228']) {
      await submitAccepted(db, organization, { npis: [npi], webhook });
      await addSuppression(db, BY, { kind: 'npi', value: npi });
      await setBlock(db, BY, `h${npi}.example`, true);
      await json('keys', 'issue', id, '--name', npi, ...WHY);
      await json('privacy', 'erase', npi, '--yes', ...WHY);
    }
    const lists = [
      ['org', 'list'],
      ['keys', 'list', id],
      ['credits', 'ledger', id],
      ['audit', 'list', id],
      ['batch', 'list'],
      ['batch', 'list', '--organization', id],
      ['batch', 'list', '--state', 'in-progress'],
      ['webhooks', 'list'],
      ['webhooks', 'blocks'],
      ['suppress', 'list'],
      ['privacy', 'list'],
    ];
    await createOrg('Newer One');
    await createOrg('Newest One');
    const timeOf = (row: Record<string, string>) =>
      row.at ?? row.done_at ?? row.since ?? row.created_at ?? '';
    for (const list of lists) {
      const name = list.join(' ');
      const rows = await json<Record<string, string>[]>(...list);
      const times = rows.map((row) => Date.parse(timeOf(row)));
      t.true(rows.length >= 3, name);
      t.deepEqual(
        times,
        times.toSorted((a, b) => b - a),
        name,
      );
      t.deepEqual(await json(...list, '--limit', '2'), rows.slice(0, 2), name);
      t.regex(
        await text(...list, '--limit', '2'),
        /\n\nThe newest 2: --limit shows more\.\n$/,
        name,
      );
      const since = new Date(times[1] ?? 0).toISOString();
      const newer = await json<unknown[]>(...list, '--since', since);
      t.deepEqual(
        newer,
        rows.filter((_, n) => (times[n] ?? 0) >= (times[1] ?? 0)),
        name,
      );
      t.true(newer.length < rows.length, name);
    }
    t.true((await json<{ id: string }[]>('keys', 'list', id)).at(-1)?.id === keyId);
  },
);

test.serial('batches are listed by organization and by state', async (t) => {
  const [mine, other] = [await openOrganization(db, 5), await openOrganization(db, 5)];
  const known = { npi: '2000000236', email: 'a@clinic.example' };
  await storeEmail(db, known);
  const submitted = async (organization: typeof mine, npis: string[]) =>
    (await submitAccepted(db, organization, { npis })).batchId;
  const open = await submitted(mine, ['2000000244', '2000000251']);
  const done = await submitted(mine, [known.npi]);
  await submitted(other, ['2000000244']);
  const ids = async (...args: string[]) =>
    (
      await json<{ batch_id: string }[]>(
        'batch',
        'list',
        '--organization',
        mine.organizationId,
        ...args,
      )
    ).map(({ batch_id: id }) => id);
  t.deepEqual(await ids(), [done, open]);
  t.deepEqual(await ids('--state', 'in-progress'), [open]);
  t.deepEqual(await ids('--state', 'completed'), [done]);
  t.like(
    (await json<object[]>('batch', 'list', '--organization', mine.organizationId))[1],
    {
      organization_id: mine.organizationId,
      status: 'in-progress',
      submitted_as: 'bulk',
      completed_count: 0,
      total: 2,
    },
  );
  t.is((await operator('batch', 'list', '--state', 'final')).code, 2);
  const second = await issueKey(db, BY, mine.organizationId, 'second');
  t.deepEqual(await json('batch', 'list', '--key', second.id), []);
  const bySecond = await submitted({ ...mine, keyId: second.id }, ['2000000269']);
  t.like(await json<object[]>('batch', 'list', '--key', second.id), [
    { batch_id: bySecond, api_key_id: second.id },
  ]);
  t.regex(
    (await operator('batch', 'list', '--key', 'key_x')).stderr,
    /unknown (API )?key/,
  );
  const both = ['--key', second.id, '--organization', 'Other'];
  t.is((await operator('batch', 'list', ...both)).code, 2);
});

test('all operator output has control and format characters escaped', async (t) => {
  // A one-character CSI, DEL, an override of direction, a tag above U+FFFF, and characters that
  // some programs take for a line end.
  const name = 'Left \u009b2J\u007f\u202e\u{e0041}\u2028\u200b"\\ right';
  const id = await createOrg('To be renamed');
  await sql`update organizations set name = ${name} where id = ${id}`;
  const escaped = 'Left \\u009b2J\\u007f\\u202e\\udb40\\udc41\\u2028\\u200b"\\ right';
  const asJson = await text('org', 'show', id, '--json');
  t.is(JSON.parse(asJson).name, name);
  const asTable = await text('org', 'list', '--limit', '1000');
  t.true(asTable.includes(escaped));
  const asText = await text('org', 'show', id);
  t.true(asText.includes(escaped));
  const { code, stderr } = await operator('org', 'show', id, '--no\u009b2J');
  t.is(code, 2);
  t.true(stderr.includes('--no\\u009b2J'));
  for (const output of [asJson, asTable, asText, stderr])
    t.notRegex(output.replaceAll('\n', ''), /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/u);
});

test.serial('a list has the columns that fit into the terminal', async (t) => {
  const sentence = 'the receiver was down on Monday, '.repeat(19).trim();
  const name = 'Größe & Söhne '.repeat(13).trim();
  const created = ['org', 'create', name, '--reason', sentence];
  const { id } = await json<{ id: string }>(...created);
  const key = await text('keys', 'issue', id, '--name', 'k'.repeat(200), ...WHY);
  t.true(key.includes(id));
  const { columns } = process.stdout;
  t.teardown(() => (process.stdout.columns = columns));
  for (const width of [80, 120, 200]) {
    process.stdout.columns = width;
    for (const command of [
      ['audit', 'list', id],
      ['org', 'list'],
      ['org', 'show', id],
      ['keys', 'list', id],
      ['credits', 'ledger', id],
      ['usage'],
    ]) {
      const printed = await text(...command);
      const tooLong = printed.split('\n').filter((line) => line.length > width);
      t.deepEqual(tooLong, [], `${command.join(' ')} at ${width}`);
    }
    const [heading = '', row = ''] = (await text('org', 'list')).split('\n');
    t.regex(heading, /^ID +NAME /);
    t.true(row.startsWith(`${id}  ${name.slice(0, 20)}`), row);
    t.regex(row, /…/, 'the name is cut');
  }
  process.stdout.columns = 10;
  t.true((await text('org', 'show', id)).includes(id), 'ids stay in one piece');
  t.true((await text('org', 'list')).includes(id));
});

test('nothing is cut in a pipe', async (t) => {
  const reason = 'because of what was said on Monday, '.repeat(20).trim();
  const created = ['org', 'create', 'Piped', '--reason', reason];
  const { id } = await json<{ id: string }>(...created);
  const lines = (await text('audit', 'list', id)).trimEnd().split('\n');
  t.is(lines.length, 2);
  t.regex(lines[0] ?? '', /^AT .* ORGANIZATION ID$/);
  t.true(lines[1]?.includes(reason));
});

test('--version prints the version and needs no database', async (t) => {
  const { code, stdout } = await operator('--version');
  t.deepEqual([code, stdout], [0, `${manifest.version}\n`]);
});
