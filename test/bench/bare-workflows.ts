import { executeChild, proxyActivities, workflowInfo } from '@temporalio/workflow';

// The baseline for `live.ts`: one child workflow with one activity per NPI, as in a sample, and
// nothing else.

const { find } = proxyActivities<{ find(npi: string): Promise<string> }>({
  startToCloseTimeout: '1 minute',
});

export async function bareBatch(npis: readonly string[]): Promise<void> {
  const { workflowId } = workflowInfo();
  await Promise.all(
    npis.map((npi) =>
      executeChild(bareLookup, { workflowId: `${workflowId}-${npi}`, args: [npi] }),
    ),
  );
}

export async function bareLookup(npi: string): Promise<string> {
  return await find(npi);
}
