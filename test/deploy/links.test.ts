import test from 'ava';
import { createLog } from '../../deploy/log.ts';
import { freshDatabase } from '../support/database.ts';
import { operatorOn } from '../support/operator.ts';
import { openOrganization, submitAccepted } from '../support/organization.ts';

// Tests that output about a workflow links to the Temporal UI if TEMPORAL_UI_URL is set.

const { db, url } = freshDatabase(test);
const NPI = '2000000010';
const WORKFLOWS = 'http://ui.example:8233/namespaces/ours/workflows';

/** Runs `work` with the settings, or without them. */
async function withUi<T>(isSet: boolean, work: () => T | Promise<T>): Promise<T> {
  const settings = {
    TEMPORAL_UI_URL: 'http://ui.example:8233/',
    TEMPORAL_NAMESPACE: 'ours',
  };
  if (isSet) Object.assign(process.env, settings);
  try {
    return await work();
  } finally {
    for (const name of Object.keys(settings)) delete process.env[name];
  }
}

test.serial(
  'operator commands print links to the workflows of a batch or an NPI in Temporal',
  async (t) => {
    const organization = await openOrganization(db, 10);
    const { batchId, requestIds } = await submitAccepted(db, organization, {
      npis: [NPI],
    });
    const { text, json } = operatorOn(url);
    const show = () => json<{ temporal?: string }>('batch', 'show', batchId);
    t.is((await withUi(true, show)).temporal, `${WORKFLOWS}/${batchId}`);
    t.false('temporal' in (await withUi(false, show)));
    const explain = () => text('explain', requestIds[0] ?? '');
    const told = await withUi(true, explain);
    t.true(
      told.includes(`${WORKFLOWS}?query=${encodeURIComponent(`Npi = "${NPI}"`)}`),
      told,
    );
    t.false((await withUi(false, explain)).includes('workflows'));
  },
);

test.serial(
  'a log line about a workflow contains a link to it in the Temporal UI',
  async (t) => {
    const linksOf = (line: object, isSet = true) =>
      withUi(isSet, () => {
        const lines: string[] = [];
        createLog('test', 'info', { write: (text) => lines.push(text) }).info(
          line,
          'something',
        );
        return JSON.parse(lines[0] ?? '').temporal;
      });
    t.is(
      await linksOf({ workflow_id: 'req_1', batch_id: 'bat_1' }),
      `${WORKFLOWS}/req_1`,
    );
    t.is(await linksOf({ batch_id: 'bat_1' }), `${WORKFLOWS}/bat_1`);
    t.is(await linksOf({ organization_id: 'org_1' }), undefined);
    t.is(await linksOf({ batch_id: 'bat_1' }, false), undefined);
  },
);
